"""Every config in examples/patterns/ is trained to its end, does what it is for, and stands on its page."""

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.events import steps_taken
from tests.support.scripts import make_data
from trivium.ask.export import export_checkpoint
from trivium.config.load import load
from trivium.config.schema import Tokenizer
from trivium.config.sources import Fim
from trivium.errors import ResumeError
from trivium.model.folder import read_spec
from trivium.run.events import read_events
from trivium.text.fim import find_fim
from trivium.text.tokenizer import open_tokenizer
from trivium.text.train_tokenizer import train_on_texts
from trivium.train.fork import fork_run
from trivium.train.trainer import Trainer

ROOT = Path(__file__).parent.parent
PATTERNS = sorted((ROOT / "examples" / "patterns").glob("*.toml"))
Train = Callable[..., Trainer]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples' data, in which every pattern finds what it reads."""
    folder = tmp_path_factory.mktemp("patterns")
    make_data().write_sources(folder / "examples" / "data")
    return folder


@pytest.fixture
def train(root: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train a pattern, once."""
    monkeypatch.chdir(root)

    def trains(name: str, *overrides: str) -> Trainer:
        pattern = ROOT / "examples" / "patterns" / f"{name}.toml"
        trainer = Trainer(pattern, ["engine.device=cpu", *overrides], show=False)
        trainer.run()
        assert trainer.finished
        return trainer

    return trains


def events_of(name: str) -> list[dict[str, Any]]:
    return list(read_events(Path("runs") / name / "events.jsonl"))


def source_shares(trainer: Trainer, stage: int) -> dict[str, float]:
    """Of a stage: the shares of the rows that its batches hold."""
    planned = trainer.plan.stages[stage]
    assert planned.start is not None
    assert planned.end is not None
    batches = [trainer.loader.batch(step) for step in range(planned.start, planned.end)]
    names = [batch.sources[number] for batch in batches for number in batch.source]
    return {name: names.count(name) / len(names) for name in dict.fromkeys(names)}


def test_mixture(train: Train) -> None:
    trainer = train("mixture")
    assert source_shares(trainer, 0)["code"] == pytest.approx(0.1, abs=0.04)
    assert source_shares(trainer, 1)["code"] == pytest.approx(0.6, abs=0.06)


def test_mixture_on_jax(train: Train) -> None:
    train("mixture", "run.name=on-torch")
    train("mixture", "run.name=on-jax", "engine.name=jax")
    torch, jax = (list(steps_taken(Path(f"runs/on-{name}/events.jsonl")).values()) for name in ("torch", "jax"))
    assert [step["loss_tokens_by_source"] for step in torch] == [step["loss_tokens_by_source"] for step in jax]
    assert jax[-1]["loss"] < jax[0]["loss"] - 0.5
    assert [step["step"] for step in jax if step["compilations"]] == [1]  # both stages have rows of one shape


def test_fade(train: Train) -> None:
    trainer = train("fade")
    # Half of the fade's 8 steps counts as the old mixture: (4 x 0.1 + 8 x 0.6) / 12.
    assert source_shares(trainer, 1)["code"] == pytest.approx(0.433, abs=0.06)


def test_longer_context(train: Train) -> None:
    loader = train("longer-context").loader
    assert (loader.batch(11).tokens.shape, loader.batch(12).tokens.shape) == ((4, 128), (1, 512))


def test_epochs(train: Train) -> None:
    trainer = train("epochs")
    assert [stage.uses["talk"].epochs for stage in trainer.plan.stages] == pytest.approx([1, 1, 1], abs=0.08)
    assert [stage.seed for stage in trainer.plan.stages] == [1234, 2, 3]


def test_anneal(train: Train) -> None:
    trainer = train("anneal")
    assert [(stage.name, stage.start, stage.end) for stage in trainer.plan.stages] == [
        ("general", 0, 20),
        ("anneal", 20, 25),
    ]
    rates = [event["lr"]["matrix"] for event in steps_taken(Path("runs/anneal/events.jsonl")).values()]
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_schedule(train: Train) -> None:
    train("schedule")
    rates = [event["lr_multiplier"] for event in steps_taken(Path("runs/schedule/events.jsonl")).values()]
    assert rates[4:16] == [1.0] * 12
    assert rates[:5] == sorted(rates[:5])
    assert rates[16:] == sorted(rates[16:], reverse=True)


def test_ramp(train: Train) -> None:
    trainer = train("ramp")
    (stage,) = trainer.plan.stages
    sizes = [len(trainer.loader.batch(step).tokens) for step in range(trainer.plan.total_steps)]
    assert list(dict.fromkeys(sizes)) == [2, 4, 6, 8]
    assert sum(size for size in sizes if size < 8) * 128 >= 6144
    assert stage.tokens == pytest.approx(0.2 * 123_520, abs=8 * 128)  # two layers of 53,248, and the head


def test_depth(train: Train) -> None:
    trainer = train("depth")
    assert (trainer.plan.model.layers, trainer.plan.model.width) == (2, 128)
    assert trainer.config.optimizer.name == "muon"
    assert trainer.plan.total_steps == 12  # written, and so not chosen


def test_optimizer(train: Train) -> None:
    optimizers = train("optimizer").plan.optimizers
    assert [optimizer.settings.name for optimizer in optimizers] == ["adamw", "adamw", "muon"]
    assert [optimizer.settings.grad_clip for optimizer in optimizers] == [1.0, 0.2, 1.0]


def test_fim(train: Train) -> None:
    train_on_texts(["examples/data/texts"], Path("examples/data/fim-tokenizer"), 400, fim=True)
    trainer = train("fim")
    config = Tokenizer(path="examples/data/fim-tokenizer")
    tokenizer = open_tokenizer(config)
    assert tokenizer is not None
    found = find_fim(Fim(), tokenizer, config)
    assert found is not None
    read = [trainer.loader.batch(step).tokens for step in range(12)]
    assert set(found.ids) <= set(np.concatenate(read, axis=None).tolist())
    with pytest.raises(ResumeError) as error:
        train("fim", "sources.pages.fim.rate=0.6")
    assert str(error.value) == (
        "cannot resume at step 12: sources.pages.fim.rate was 0.5 and is now 0.6, and steps 0 to 11 have been taken. "
        "Put it back, or fork an earlier checkpoint: trivium fork runs/fim --at STEP new.toml"
    )


def rates_of(name: str) -> list[float]:
    """The learning rate of the layers' matrices at every step, as a multiple of its peak."""
    return [event["lr_multiplier"] for event in steps_taken(Path(f"runs/{name}/events.jsonl")).values()]


def test_points(train: Train) -> None:
    train("points")
    rates = rates_of("points")
    assert rates[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert rates[4:17] == [1.0] * 13
    assert rates[20] == pytest.approx(0.55)  # the middle of the cosine
    assert rates[24:] == [0.1] * 4 + [0.0332] * 4


def test_stretch(train: Train) -> None:
    train("stretch")
    rates = rates_of("stretch")
    assert rates[10] == pytest.approx(0.55)
    assert rates[:24] == sorted(rates[:24], reverse=True)
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * (0.5 + 0.5 * (step - 10) / 30))) / 2 for step in range(10, 25)]
    assert rates[10:25] == pytest.approx(cosine)  # the last stage starts where the schedule stands
    assert rates[24:] == pytest.approx([cosine[-1] * (1 - step / 8) for step in range(8)])
    last = steps_taken(Path("runs/stretch/events.jsonl"))[32]["lr"]
    assert last["embedding"] == pytest.approx(0.1 * last["matrix"])


def test_cycles(train: Train) -> None:
    train("cycles")
    fall, longer = [1.0, 0.55], [1.0, 0.7, 0.4]
    expected = [0.5, *[1.0] * 3, *fall, *[1.0] * 4, *fall, *[1.0] * 9, *longer]
    assert rates_of("cycles") == pytest.approx(expected)


def test_kl(train: Train) -> None:
    train("kl")
    steps = list(steps_taken(Path("runs/kl/events.jsonl")).values())
    assert all("kl" not in event["extra"] for event in steps[:12])
    assert steps[12]["extra"]["kl"] == pytest.approx(0, abs=1e-5)  # nothing has moved yet
    assert steps[-1]["extra"]["kl"] > 1e-5


def test_distill(train: Train) -> None:
    train("teacher")
    trainer = train("distill")
    steps = list(steps_taken(Path("runs/distill/events.jsonl")).values())
    assert all("distill" not in event["extra"] for event in steps[:8])
    assert steps[-1]["extra"]["distill"] < steps[8]["extra"]["distill"]
    assert trainer.plan.stages[1].teacher is not None
    assert trainer.plan.stages[1].teacher.width == 128


def test_new_tokens(train: Train) -> None:
    train("new-tokens")
    folder = Path("runs/new-tokens/checkpoints")
    assert [read_spec(folder / f"step-{step:08}/engine").vocab for step in (12, 18, 26)] == [257, 266, 266]
    began = [event for event in events_of("new-tokens") if event["event"] == "stage"]
    assert began[1]["changes"]["freeze"] == [[], ["norm", "attention", "feed_forward"]]
    assert began[2]["changes"]["freeze"] == [["norm", "attention", "feed_forward"], []]
    assert began[1]["changes"]["vocab"] == [257, 266]


def test_average(train: Train) -> None:
    trainer = train("average")
    evaluated = [event for event in events_of("average") if event["event"] == "evaluated"]
    assert {event["averaged"] for event in evaluated} == {False, True}
    assert trainer.engine.has_average


def test_weights_and_gaps_in_the_loss(train: Train) -> None:
    trainer = train("loss")
    steps = list(steps_taken(Path("runs/loss/events.jsonl")).values())
    assert all("weighted_loss" not in event["extra"] for event in steps[:12])
    for event in steps[12:]:
        losses, tokens = event["loss_by_source"], event["loss_tokens_by_source"]
        halved = 0.5 * losses["web"] * tokens["web"] + losses["code"] * tokens["code"]
        mean = halved / (0.5 * tokens["web"] + tokens["code"])
        assert event["extra"]["objective"] == event["extra"]["weighted_loss"] == pytest.approx(mean, rel=1e-6)
    first, last = (event for event in events_of("loss") if event["event"] == "evaluated")
    assert (first["weighted_loss"], first["step"], last["step"]) == (None, 12, 20)
    assert last["loss"] != last["weighted_loss"] is not None
    learnt = sum(event["loss_tokens"] for event in steps)
    slots = sum(np.count_nonzero(trainer.loader.batch(step).segments >= 0) for step in range(20))
    assert 0.8 < learnt / slots < 0.93


def test_until(train: Train) -> None:
    trainer = train("until")
    general, longer, longest = trainer.plan.stages
    (told,) = [event for event in events_of("until") if event["event"] == "ended_early"]
    assert (told["stage"], told["step"]) == ("general", general.end)
    assert general.ended is not None
    assert general.end < 40
    assert (longer.start, longer.steps, longest.steps) == (general.end, 10, 10)


def test_a_fork_and_a_midtraining_begin_with_the_base(train: Train) -> None:
    train("base")
    config = ROOT / "examples" / "patterns" / "ablate.toml"
    fork_run(Path("runs/base"), 16, config, ["engine.device=cpu"])
    train("ablate")
    losses = {name: steps_taken(Path(f"runs/{name}/events.jsonl")) for name in ("base", "ablate")}
    assert min(losses["ablate"]) == 17  # it has not taken the base's steps again
    assert losses["ablate"][17]["loss_tokens_by_source"] != losses["base"][17]["loss_tokens_by_source"]
    export_checkpoint(Path("runs/base"), Path("exported/base"), None)
    trainer = train("midtrain")
    assert trainer.plan.model.layers == 2
    first, last = (list(steps_taken(Path(f"runs/{name}/events.jsonl")).values()) for name in ("base", "midtrain"))
    assert last[0]["loss_by_source"]["web"] < first[0]["loss_by_source"]["web"] - 0.5  # it knows the base's text


def test_every_pattern_has_a_test_and_stands_on_the_page() -> None:
    page = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in PATTERNS:
        assert f'train("{path.stem}")' in tested, path.name
        assert load(path).warnings == ()
        shown = path.read_text(encoding="utf-8").partition("\n\n")[2]
        missing = [line for line in shown.splitlines() if line not in page]
        assert not missing, f"{path.name}: not on the page: {missing}"


def test_patterns_have_names_of_their_own() -> None:
    names = [tomllib.loads(path.read_text(encoding="utf-8"))["run"]["name"] for path in PATTERNS]
    assert len(set(names)) == len(names)
