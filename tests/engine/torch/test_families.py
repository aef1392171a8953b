"""Models of every family, made by transformers itself: read, packed, trained, written and generated with as there."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import make_batch, settings_at
from tests.support.families import MODELS, SEQ_LEN, VOCAB, their_logits, their_model
from tests.support.shared_families import shared_families
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.model import DeviceBatch
from trivium.model.folder import read_spec
from trivium.model.huggingface import read_family
from trivium.rows.batch import Batch


@torch.no_grad()
def our_logits(engine: TorchEngine, batch: Batch) -> Tensor:
    return engine.model.logits(DeviceBatch.of(batch, engine.rotation, True))


def engine_from(folder: Path) -> TorchEngine:
    engine = TorchEngine(EngineSettings(read_spec(folder), device="cpu"))
    engine.start_from(folder)
    engine.enter(StageSettings(SEQ_LEN))
    return engine


def greedy(engine: TorchEngine, prompt: list[int], count: int) -> list[int]:
    generation = engine.generation([np.array(prompt)], count)
    row = list(prompt)
    for _ in range(count):
        row.append(int(generation.logits()[0].argmax()))
        generation.append(np.array(row[-1:]))
    return row


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_theirs_is_read_packed_trained_written_and_continued(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    engine, row = engine_from(tmp_path / "theirs"), make_batch(((SEQ_LEN,),), seq_len=SEQ_LEN, vocab=VOCAB)
    assert read_family(tmp_path / "theirs").name == name.partition(",")[0]
    torch.testing.assert_close(our_logits(engine, row), their_logits(theirs, row.tokens), rtol=1e-5, atol=1e-5)

    packed = make_batch(((17, 23),), seq_len=SEQ_LEN, vocab=VOCAB)
    apart = torch.cat([their_logits(theirs, part) for part in (packed.tokens[:, :17], packed.tokens[:, 17:])], 1)
    torch.testing.assert_close(our_logits(engine, packed), apart, rtol=1e-5, atol=1e-5)

    for step in range(2):
        assert np.isfinite(engine.step(packed, settings_at(step)).loss)
    engine.export(tmp_path / "ours")
    assert read_spec(tmp_path / "ours") == engine.settings.spec
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    found = their_logits(again, row.tokens)
    torch.testing.assert_close(found, our_logits(engine, row), rtol=1e-5, atol=1e-5)

    prompt = row.tokens[0, :6].tolist()
    written = again.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
    assert greedy(engine, prompt, 20) == written[0].tolist()


@pytest.mark.parametrize("name", ["qwen2", "olmo3", "apertus", "gemma3_text"])
def test_gradients_are_those_of_their_model(name: str, tmp_path: Path) -> None:
    """Of a loss over whole logits, for every parameter."""
    theirs, row = their_model(name), make_batch(((SEQ_LEN,),), seq_len=SEQ_LEN, vocab=VOCAB)
    theirs.save_pretrained(tmp_path)
    engine, family = engine_from(tmp_path), read_family(tmp_path)
    tokens, targets = (torch.from_numpy(each).long() for each in (row.tokens, row.targets))
    loss = torch.nn.functional.cross_entropy(theirs(tokens).logits[0, :-1], targets[0, :-1])
    loss.backward()  # type: ignore[no-untyped-call]
    engine._gradients(row, 1 / (SEQ_LEN - 1))
    expected = {name: each.grad for name, each in theirs.named_parameters()}
    for ours, parameter in engine.model.named_parameters():
        assert parameter.grad is not None
        wanted = expected[family.their_name(ours)]
        torch.testing.assert_close(parameter.grad[: len(wanted)], wanted, rtol=1e-3, atol=1e-5, msg=ours)


@pytest.mark.slow
def test_ranks_that_share_rows_or_matrices_find_the_losses_of_one_process() -> None:
    shared = shared_families("native")
    assert shared.keys() == MODELS.keys()
    for name, errors in shared.items():
        assert all(error is not None and error < 1e-5 for error in errors.values()), (name, errors)
