"""What the torch engine saves: the same bytes from the same steps, read back to the bit, refused where damaged."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.batches import TINY, make_batch, settings_at
from tests.support.trained import train
from trivium.engine.base import EngineSettings, OptimizerSettings
from trivium.engine.torch.checkpoint import storage
from trivium.engine.torch.checkpoint.state import (
    WEIGHTS,
    load_random_state,
    random_state,
    read_into,
    saved_tensors,
    under,
)
from trivium.engine.torch.engine import TorchEngine
from trivium.errors import ResumeError
from trivium.files import hash_file, read_json
from trivium.model.folder import SPEC_FILE, TORCH_INDEX

MUON = OptimizerSettings("muon")
SMALL = replace(TINY, layers=1, width=8, heads=2, kv_heads=2, head_dim=4, ffn=8, vocab=10)
SAVED_ONCE = Path(__file__).with_name("saved_once")  # two steps of SMALL on shard 2 x tensor 2, in the first form
SAVED_WEIGHTS = "fe4f5edd32a13f7f"
SAVED_OPTIMIZER = "016b858abd9617a2"


def engine(seed: int = 3, steps: int = 0) -> TorchEngine:
    """A tiny engine after some steps."""
    made = TorchEngine(EngineSettings(TINY, MUON, seed=seed, device="cpu"))
    for step in range(steps):
        made.step(make_batch(seed=step), settings_at(step))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def weights(made: TorchEngine) -> dict[str, torch.Tensor]:
    """Copies of all parameters."""
    return {name: parameter.detach().clone() for name, parameter in made.model.named_parameters()}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_launches_that_take_the_same_steps_write_the_same_bytes(ranks: int, tmp_path: Path) -> None:
    one, other = (contents(train("torch", ranks, tmp_path / name)) for name in ("one", "other"))
    files = [f"rank-{rank:05}.safetensors" for rank in range(ranks)]
    assert list(one) == sorted([*files, SPEC_FILE, TORCH_INDEX])
    assert {name for name in one if one[name] != other[name]} == set()


def test_another_seed_draws_other_numbers() -> None:
    states = []
    for seed in (1, 2):
        engine(seed)
        states.append(random_state()["cpu"])
    assert not torch.equal(*states)


@pytest.mark.slow
def test_what_two_ranks_saved_one_process_reads(tmp_path: Path) -> None:
    train("torch", 2, tmp_path / "two")
    train("torch", 1, tmp_path / "one")
    one, two = engine(seed=4), engine(seed=5)
    one.load(tmp_path / "one")
    two.load(tmp_path / "two")
    for name, weight in weights(one).items():
        torch.testing.assert_close(weights(two)[name], weight, rtol=1e-4, atol=1e-5)
    now = settings_at(3)
    assert two.step(make_batch(seed=3), now).loss == pytest.approx(one.step(make_batch(seed=3), now).loss, rel=1e-5)


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    trained = engine(steps=3)
    torch.rand(5)  # the generator has moved on
    files = trained.save(tmp_path).wait()
    random, optimizer = torch.get_rng_state(), dict(trained.optimizers.state())
    assert files.keys() == {"rank-00000.safetensors"}
    for name, facts in files.items():
        assert facts == {"bytes": (tmp_path / name).stat().st_size, "hash": hash_file(tmp_path / name)}
    loaded = engine(seed=4, steps=1)
    loaded.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), random)
    for name, weight in weights(trained).items():
        assert torch.equal(weights(loaded)[name], weight)
    assert dict(loaded.optimizers.state()).keys() == optimizer.keys()
    for name, part in loaded.optimizers.state():
        assert torch.equal(part, optimizer[name])


def test_weights_alone_are_read_without_the_rest(tmp_path: Path) -> None:
    trained = engine(steps=1)
    trained.save(tmp_path).wait()
    saved = saved_tensors(tmp_path, TINY)
    shapes = {name: tuple(facts.shape) for name, facts in saved.items()}
    empty = {name: torch.empty_like(weight) for name, weight in weights(trained).items()}
    assert {name: shapes[WEIGHTS + name] for name in empty} == {name: tuple(w.shape) for name, w in empty.items()}
    read_into(tmp_path, saved, under(WEIGHTS, empty))
    assert all(torch.equal(empty[name], weight) for name, weight in weights(trained).items())


def test_a_rank_that_was_not_saved_takes_rank_0s_random_state(tmp_path: Path) -> None:
    engine().save(tmp_path).wait()
    saved = torch.get_rng_state()
    torch.rand(5)
    load_random_state(tmp_path, saved_tensors(tmp_path, TINY), rank=7)
    assert torch.equal(torch.get_rng_state(), saved)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """A hash of names and bytes."""
    content = b"".join(name.encode() + tensors[name].numpy().tobytes() for name in sorted(tensors))
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def test_a_checkpoint_in_the_first_form_is_read_to_the_bit() -> None:
    loaded = TorchEngine(EngineSettings(SMALL, seed=4, device="cpu"))
    loaded.load(SAVED_ONCE)
    assert digest(weights(loaded)) == SAVED_WEIGHTS
    assert digest(dict(loaded.optimizers.state())) == SAVED_OPTIMIZER


def test_the_table_of_tensors_is_read_once_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(steps=1).save(tmp_path).wait()
    loaded = engine()
    read: list[str] = []

    def counted(path: Path) -> object:
        read.append(path.name)
        return read_json(path)

    monkeypatch.setattr(storage, "read_json", counted)
    loaded.load(tmp_path)
    loaded.start_from(tmp_path)
    assert read == [TORCH_INDEX, TORCH_INDEX]


def test_a_save_that_fails_on_a_rank_raises_what_went_wrong(tmp_path: Path) -> None:
    (tmp_path / "folder").touch()
    with pytest.raises(FileExistsError, match="folder"):
        engine().save(tmp_path / "folder").wait()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize("damage", [truncate, cut_header])
def test_a_truncated_file_is_refused(damage: Callable[[Path], None], tmp_path: Path) -> None:
    engine(steps=1).save(tmp_path).wait()
    path = tmp_path / "rank-00000.safetensors"
    damage(path)
    with pytest.raises(ResumeError) as refusal:
        engine().load(tmp_path)
    assert str(refusal.value) == f"{path}: is corrupt: truncated, or changed since it was written. Put it back."


def test_a_flipped_byte_changes_the_hash_that_was_reported(tmp_path: Path) -> None:
    files = engine(steps=1).save(tmp_path).wait()
    path = tmp_path / "rank-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert hash_file(path) != files[path.name]["hash"]
    assert path.stat().st_size == files[path.name]["bytes"]


def test_a_folder_that_no_engine_saved_or_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeError) as refusal:
        saved_tensors(tmp_path, TINY)
    assert str(refusal.value) == f"{tmp_path}: is not a folder that an engine saved, or not a whole one."
    engine().save(tmp_path).wait()
    with pytest.raises(ResumeError, match="holds another model: ffn was 64 and is now 128"):
        saved_tensors(tmp_path, replace(TINY, ffn=128))
