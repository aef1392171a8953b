"""A tiny model of a family in our engine and in transformers -> what they agree on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.support.batches import make_batch, settings_at
from trivium.engine.base import EngineSettings, StageSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.model.spec import ModelSpec
from trivium.rows.batch import Batch

SLOTS = 40
NEW_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of a family."""

    packed_error: float  # of logits, packed against separate documents
    logits_error: float  # of logits, ours against transformers' own, on an export after two steps
    reads_theirs: bool  # what transformers saves is read to the bit
    names_as_theirs: bool  # an export has the tensors that transformers would write
    greedy_as_theirs: bool  # two prompts continue with the same tokens
    learns: bool
    has_experts: bool


def check(spec: ModelSpec, folder: Path) -> Checked:
    """Two steps of a tiny model, an export, and transformers on it."""
    engine = TorchEngine(EngineSettings(spec, seed=1))
    engine.enter(StageSettings(SLOTS))
    batch = make_batch(((13, 17, 10), (40,), (20, 11)), seq_len=SLOTS, vocab=spec.vocab)
    packed = logits_of(engine, batch)[0]
    losses = [engine.step(batch, settings_at(step)).loss for step in range(3)]
    parts = [logits_of(engine, document)[0] for document in documents(batch, 0)]
    packed_error = difference(logits_of(engine, batch)[0], torch.cat(parts))
    assert not torch.equal(packed, logits_of(engine, batch)[0]), "it was trained"
    engine.export(folder / "ours")
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder / "ours", attn_implementation="eager")
    whole = batch.rows(1, 2)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(whole.tokens).long(), use_cache=False).logits
    theirs.save_pretrained(folder / "theirs")
    again = TorchEngine(EngineSettings(spec, draw=False))
    again.start_from(folder / "theirs")
    same = [torch.equal(one, other) for one, other in zip(tensors(engine), tensors(again), strict=True)]
    prompts = [batch.tokens[0, :5], batch.tokens[1, :9]]
    greedy = [their_greedy(theirs, prompt) for prompt in prompts]
    return Checked(
        packed_error=packed_error,
        logits_error=difference(logits_of(engine, whole), expected),
        reads_theirs=all(same),
        names_as_theirs=names(folder / "ours") == names(folder / "theirs"),
        greedy_as_theirs=continued(engine, prompts) == greedy,
        learns=losses[-1] < losses[0],
        has_experts=any(parameter.ndim == 3 for parameter in engine.model.parameters()),
    )


def documents(batch: Batch, row: int) -> list[Batch]:
    """The documents of a row, each as a batch."""
    found = []
    for number in range(int(batch.segments[row].max()) + 1):
        here = np.flatnonzero(batch.segments[row] == number)
        arrays = (batch.tokens, batch.targets, batch.segments, batch.positions)
        tokens, targets, segments, positions = (each[row : row + 1, here] for each in arrays)
        found.append(Batch(tokens, targets, segments, positions, batch.source[row : row + 1], batch.sources))
    return found


@torch.no_grad()
def logits_of(engine: TorchEngine, batch: Batch) -> Tensor:
    return engine.model.logits(engine._on_device(batch, engine.rotation))


def continued(engine: TorchEngine, prompts: list[NDArray[np.int32]]) -> list[list[int]]:
    """The likeliest tokens after each prompt."""
    rows = engine.generation(prompts, NEW_TOKENS)
    written = []
    for _ in range(NEW_TOKENS):
        written.append(rows.logits().argmax(1))
        rows.append(written[-1])
    return [[int(step[row]) for step in written] for row in range(len(prompts))]


def their_greedy(model: Any, prompt: NDArray[np.int32]) -> list[int]:
    """What transformers' own generate writes after a prompt; without a mask it would take zeros for padding."""
    tokens = torch.from_numpy(prompt).long()[None]
    how = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written: list[int] = model.generate(tokens, attention_mask=torch.ones_like(tokens), **how)[
        0, len(prompt) :
    ].tolist()
    return written


def tensors(engine: TorchEngine) -> list[Tensor]:
    return list(engine.model.tensors().values())


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())
