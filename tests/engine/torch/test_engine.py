"""The torch engine keeps the contract; and what only it has: threads, compiled layers, exact mode."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from tests.engine.contract import EngineContract
from tests.engine.layers_contract import FORMS
from tests.engine.tiny import STAGE, hash_of
from tests.support.batches import SEQ_LEN, TINY, make_batch, settings_at
from trivium.engine.base import Engine, EngineSettings, StageSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.model import Decoder
from trivium.errors import ConfigError


class TestTorchEngine(EngineContract):
    def make(self, settings: EngineSettings) -> Engine:
        return TorchEngine(settings)


def test_exact_mode_does_not_outlive_a_step() -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu", deterministic=True))
    engine.step(make_batch(), settings_at())
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "tpu"])
def test_a_device_that_is_not_there_is_refused_in_a_line(device: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TorchEngine(EngineSettings(TINY, device=device))
    what = f'is "{device}", which torch does not find here. Write "cpu", or leave it out.'
    assert str(caught.value).endswith(f"engine.device: {what}")


def test_the_padded_vocabulary_is_never_touched() -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu"))
    for step in range(3):
        engine.step(make_batch(seed=step), settings_at(step))
    assert isinstance(engine.model, Decoder)
    assert engine.model.lm_head.weight.shape[0] == TINY.padded_vocab == 128
    for module in (engine.model.embedding, engine.model.lm_head):
        assert not module.weight[TINY.vocab :].any()


def test_a_save_keeps_its_copy_until_it_is_written_and_the_next_one_has_it_again(tmp_path: Path) -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu"))
    hashes, handles, copies = [], [], []
    for step in range(3):
        engine.step(make_batch(seed=step), settings_at(step))
        hashes.append(hash_of(engine, tmp_path / f"now {step}"))
        handles.append(engine.save(tmp_path / f"step {step}"))  # the one before may still be written
        copies.append({name: copy.data_ptr() for name, copy in engine.writer._copies.items()})
    for handle in handles:
        handle.wait()
    for step, known in enumerate(hashes):
        engine.load(tmp_path / f"step {step}")
        assert hash_of(engine, tmp_path / f"then {step}") == known
    assert copies[0] == copies[1] == copies[2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own ways
def test_compiled_layers_learn_the_same_and_continue_bit_for_bit_in_another_stage(tmp_path: Path) -> None:
    eager, compiled, resumed = (
        TorchEngine(EngineSettings(TINY, device="cpu", compile=compiles)) for compiles in (False, True, True)
    )

    def take(engine: TorchEngine, stage: StageSettings) -> list[float]:
        engine.enter(stage)
        batches = [make_batch(seed=seed, seq_len=stage.seq_len) for seed in range(3)]
        return [engine.step(batch, settings_at(step)).loss for step, batch in enumerate(batches)]

    longer = StageSettings(2 * SEQ_LEN)
    assert take(compiled, STAGE) == pytest.approx(take(eager, STAGE), rel=1e-4)
    compiled.save(tmp_path / "boundary").wait()
    losses = take(compiled, longer)
    assert losses == pytest.approx(take(eager, longer), rel=1e-3)
    resumed.load(tmp_path / "boundary")
    assert take(resumed, longer) == losses
    assert hash_of(resumed, tmp_path / "resumed") == hash_of(compiled, tmp_path / "never stopped")


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own ways
def test_rows_of_other_shapes_leave_what_is_compiled_for_training_alone() -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu", compile=True))
    engine.enter(STAGE)
    for step in range(2):
        engine.step(make_batch(seed=step), settings_at(step))
    compiled = dict(counters["frames"])
    for length in range(2, 14):
        engine.evaluate(make_batch(((length,),), seq_len=length))
        engine.nats(make_batch(((length,), (1,)), seq_len=length))
    engine.step(make_batch(), settings_at(2))
    assert dict(counters["frames"]) == compiled


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own ways
@pytest.mark.parametrize("form", ["olmo", "xielu"])
def test_compiled_layers_of_other_forms_learn_the_same(form: str) -> None:
    settings = EngineSettings(FORMS[form], seed=1, device="cpu")
    eager, compiled = TorchEngine(settings), TorchEngine(replace(settings, compile=True))
    for layer in compiled.model.layers:
        layer.compile(dynamic=False, backend="aot_eager")
    for engine in (eager, compiled):
        engine.enter(STAGE)
    for step in range(2):
        batch = make_batch(seed=step)
        loss = eager.step(batch, settings_at(step)).loss
        assert compiled.step(batch, settings_at(step)).loss == pytest.approx(loss, rel=1e-4)
