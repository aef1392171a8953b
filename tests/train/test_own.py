"""Models, losses, optimizers, schedules and steps of one's own, on both engines."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from tests.support.command_line import trivium
from tests.support.corpus import write_source
from tests.support.events import steps_taken
from tests.support.own_torch import Small
from tests.support.scripts import ROOT
from tests.support.training import SMALL_MODEL, StoppingTrainer
from trivium.engine.base import EvalStats, StepSettings, StepStats
from trivium.engine.figures import figures_by_source
from trivium.engine.mesh import MeshShape, refuse_uneven_matrices
from trivium.errors import ConfigError, PlanError, ResumeError, UsageError
from trivium.model.spec import ModelSpec
from trivium.rows.batch import Batch
from trivium.train.trainer import Trainer

CONFIG = (
    SMALL_MODEL
    + """
vocab = 512
init_std = 0.2
[tokenizer]
kind = "bytes"
[optimizer]
lr = 0.003
grad_clip = 1.0
[schedule]
shape = "constant"
[evaluate]
tokens = 100
[sources.web]
kind = "tokens"
path = "web"
validation = 0.2
[[stages]]
name = "one"
steps = 4
seq_len = 16
batch_size = 4
[[stages]]
name = "two"
steps = 4
seq_len = 16
batch_size = 4
evaluate = true
kl = { beta = 0.5 }
"""
)
ENGINES = ["torch", pytest.param("jax", marks=pytest.mark.slow)]
DIRECTIONS = {"NllGapTrainer": "nll_gap", "KlTrainer": "forward"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source, and a config of two stages of four steps, the second with a reference; the tests work there."""
    write_source(tmp_path / "web", [np.random.default_rng(0).integers(2, 24, 40).tolist()], "uint16")
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(engine: str, kind: str) -> type[Trainer]:
    found: type[Trainer] = getattr(import_module(f"tests.support.own_{engine}"), kind)
    return found


def train(kind: type[Trainer], engine: str, *overrides: str, name: str = "run") -> list[dict[str, Any]]:
    """Events of every step of a run."""
    trainer = kind("run.toml", [f"engine.name={engine}", f"run.name={name}", *overrides], show=False).run()
    return list(steps_taken(trainer.folder.events).values())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", DIRECTIONS)
def test_a_penalty_of_ones_own_gives_the_losses_of_ours_step_for_step(folder: Path, engine: str, kind: str) -> None:
    direction = f'stages.1.kl={{beta = 0.5, direction = "{DIRECTIONS[kind]}"}}'
    ours = train(Trainer, engine, direction, "engine.micro_batch_size=3", name="ours")
    theirs = train(own(engine, kind), engine, "engine.micro_batch_size=3", name="theirs")
    assert len(ours) == len(theirs) == 8
    for mine, other in zip(ours, theirs, strict=True):
        assert other["loss"] == pytest.approx(mine["extra"].get("objective", mine["loss"]), rel=1e-5)
        assert other["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-4)
        figures = {name: figure for name, figure in mine["extra"].items() if name != "objective"}
        assert other["extra"] == pytest.approx(figures, rel=1e-4, abs=1e-6)
        assert other["loss_tokens_by_source"] == mine["loss_tokens_by_source"]
    assert ours[-1]["extra"]["kl"] > 1e-4 or DIRECTIONS[kind] == "nll_gap"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_model_of_ones_own_resumes_to_the_bit_and_learns_the_same_on_two_devices(folder: Path, engine: str) -> None:
    one, two = (play(folder / str(devices), engine, devices) for devices in (1, 2))
    whole, parts = two["whole"], two["parts"]
    assert (parts["files"], parts["steps"]) == (whole["files"], whole["steps"])
    assert len(whole["steps"]) == 8
    for step, (loss, *_) in one["whole"]["steps"].items():
        assert whole["steps"][step][0] == pytest.approx(loss, rel=1e-5)
    assert whole["validation"] == pytest.approx(one["whole"]["validation"], rel=1e-5)
    assert whole["texts"] == one["whole"]["texts"]
    assert len(whole["texts"]) == 3
    if engine == "torch":
        losses = {step: loss for step, (loss, *_) in whole["steps"].items()}
        assert {step: loss for step, (loss, *_) in two["bfloat16"]["steps"].items()} == pytest.approx(losses, rel=3e-2)


def play(folder: Path, engine: str, devices: int) -> Any:
    """What the script of forks finds, on ranks of torch or on devices of JAX."""
    folder.mkdir()
    write_source(folder / "web", [np.random.default_rng(0).integers(2, 24, 40).tolist()], "uint16")
    (folder / "run.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "tests.train.own_ranks", str(folder), engine, str(devices)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_of_ones_own_model_is_opened_by_its_trainer_alone(folder: Path, engine: str) -> None:
    kind = own(engine, "OwnModelTrainer")
    train(kind, engine, "stages.1.kl.beta=0.1")
    trainer = kind("run.toml", [f"engine.name={engine}"], show=False)
    text = trainer.sample("ab", max_new_tokens=5, temperature=0)
    assert text == trainer.sample("ab", max_new_tokens=5, temperature=0) == trainer.open_model(8).write("ab", 5, 0)
    refused = (
        "step-00000008/engine: holds a model that a Trainer's own function made (Small), which this command does not "
        'have. Use that Trainer in Python: MyTrainer("run.toml").sample("a prompt"), or its open_model() and run().'
    )
    for command in (["sample", "runs/run", "--prompt", "ab"], ["export", "runs/run", "out"]):
        code, _, said = trivium(folder, *command)
        assert (code, refused in " ".join(said.split())) == (2, True), said
    assert not Path("out").exists()
    with pytest.raises(ResumeError, match=r'Trainer\.model was "Small" and is now absent'):
        train(Trainer, engine, "stages.1.steps=6", "stages.1.kl.beta=0.1")
    with pytest.raises(ResumeError, match=r"holds a model that a Trainer's own function made \(Small\)"):
        train(Trainer, engine, "model={init = 'runs/run'}", name="other")
    started = train(kind, engine, "model={init = 'runs/run'}", "stages.0.steps=1", name="started")
    assert started[0]["flops"] == 0.0  # nobody has counted them
    with trainer.open_session() as session, pytest.raises(UsageError, match="Hugging Face's form is for decoders"):
        session.engine.export(Path("out"))


def test_matrices_of_ones_own_model_are_not_split() -> None:
    spec = ModelSpec(2, 32, 4, 2, 8, 64, 50, 16, own="Small")
    refuse_uneven_matrices(MeshShape(shard=2), spec)
    with pytest.raises(ConfigError) as refusal:
        refuse_uneven_matrices(MeshShape(tensor=2), spec)
    assert str(refusal.value).endswith(
        "engine.parallel.tensor: is 2, but only the decoder's matrices can be split, and Small makes the model. "
        "Set it to 1, and share the model by shard."
    )


class Returning(StoppingTrainer):
    """A test chooses what its methods return."""

    returns: ClassVar[dict[str, Any]] = {}
    stop_at = 2

    def optimizer(self) -> Any:
        return self.returns.get("optimizer")

    def schedule(self) -> Any:
        return self.returns.get("schedule")

    def model(self) -> Any:
        return self.returns.get("model")

    def loss(self) -> Any:
        return self.returns.get("loss")


def returning(stop_at: int = 2, **returned: Any) -> type[Returning]:
    return type("Returning", (Returning,), {"returns": returned, "stop_at": stop_at})


@pytest.mark.parametrize(
    "schedule",
    [
        optax.cosine_decay_schedule(1.0, 8),
        lambda step: np.float32(0.5 * (1 + np.cos(np.pi * step / 8))),
        lambda step: torch.tensor(0.5 * (1 + np.cos(np.pi * step / 8))),
    ],
    ids=["optax", "numpy", "torch"],
)
def test_a_schedule_may_give_any_kind_of_number(folder: Path, schedule: Callable[[int], Any]) -> None:
    steps = train(returning(3, schedule=schedule), "torch")
    expected = [0.5 * (1 + np.cos(np.pi * step / 8)) for step in range(3)]
    assert [step["lr_multiplier"] for step in steps] == pytest.approx(expected, rel=1e-6)
    assert [step["lr"]["matrix"] for step in steps] == pytest.approx([0.003 * each for each in expected], rel=1e-6)


def test_what_a_schedule_gives_must_be_a_number(folder: Path) -> None:
    for given, shown in ((np.ones(2), "array([1., 1.])"), (float("nan"), "nan"), ("x", "'x'")):
        with pytest.raises(UsageError) as refusal:
            train(returning(schedule=lambda step: given), "torch")  # noqa: B023
        what = f"the function of Trainer.schedule() returned {shown} at step 0, not a number."
        assert str(refusal.value) == what


def test_a_schedule_that_gives_rates_is_refused_before_they_are_multiplied_again(folder: Path) -> None:
    rates = optax.cosine_decay_schedule(1e-3, 8)
    with pytest.raises(UsageError) as error:
        train(returning(schedule=rates), "torch")
    assert str(error.value) == (
        "the function of Trainer.schedule() gives 0.001 at most, where optimizer.lr is 0.003. It multiplies the "
        "learning rate: return 1 at its peak, or set optimizer.lr = 1.0 and return rates."
    )
    assert train(returning(2, schedule=rates), "torch", "optimizer.lr=1.0")


def test_a_schedule_that_does_not_multiply_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        train(returning(schedule=lambda step: -1.0), "torch")
    assert str(refusal.value) == (
        "the function of Trainer.schedule() returned -1 at step 0. It multiplies the learning rate: return 0 or more."
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR
    for schedule in (scheduler, partial(scheduler, T_max=8)):
        with pytest.raises(UsageError, match=r"returned .*Return a shape's name, a function of the step or None\."):
            train(returning(schedule=schedule), "torch")


def test_an_optimizer_that_needs_a_closure_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        train(returning(optimizer=torch.optim.LBFGS), "torch")
    assert str(refusal.value) == (
        "Trainer.optimizer() made a LBFGS, whose step needs a closure that computes the loss. The engine takes one "
        "pass a step: return an optimizer that needs none."
    )


def test_scores_that_have_no_names_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        train(type("Scored", (Returning,), {"evaluator": lambda self: lambda trainer: 3}), "torch", "evaluate.every=1")
    what = 'the function of Trainer.evaluator() returned 3. Return scores by name, such as {"accuracy": 0.5}.'
    assert str(refusal.value) == what
    with pytest.raises(UsageError, match=r"^Trainer\.evaluator\(\) returned 3\. Return a function of the trainer or"):
        train(type("Scored", (Returning,), {"evaluator": lambda self: 3}), "torch", "evaluate.every=1", name="other")


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, partial(torch.optim.SGD, lr=1e-3)], ids=["class", "partial"])
def test_a_torch_optimizer_class_updates_and_resumes(folder: Path, optimizer: Any) -> None:
    whole = train(returning(4, optimizer=optimizer), "torch", name="whole")
    train(returning(2, optimizer=optimizer), "torch", name="parts")
    parts = train(returning(4, optimizer=optimizer), "torch", name="parts")
    assert [step["loss"] for step in parts] == [step["loss"] for step in whole]
    by_hand = train(
        returning(4, optimizer=lambda named: torch.optim.SGD([weight for _, weight in named], lr=1e-3)),
        "torch",
        name="x",
    )
    assert [step["loss"] for step in by_hand] == [step["loss"] for step in whole]
    other = partial(torch.optim.SGD, lr=2e-3)
    with pytest.raises(ResumeError, match=r"Trainer\.optimizer\.source was "):
        train(returning(5, optimizer=other), "torch", name="parts")


@pytest.mark.slow
def test_an_optax_transformation_updates_and_resumes(folder: Path) -> None:
    def adam(rate: float) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(rate, 0.0, 100)))

    whole = train(returning(4, optimizer=adam(1e-3)), "jax", name="whole")
    train(returning(2, optimizer=adam(1e-3)), "jax", name="parts")
    parts = train(returning(4, optimizer=adam(1e-3)), "jax", name="parts")
    assert [step["loss"] for step in parts] == [step["loss"] for step in whole]
    assert whole[-1]["loss"] < whole[0]["loss"]
    with pytest.raises(ResumeError, match=r"Trainer\.optimizer\.source was "):
        train(returning(5, optimizer=adam(2e-3)), "jax", name="parts")
    with pytest.raises(UsageError) as refusal:
        train(returning(optimizer=torch.optim.SGD), "jax", name="other")
    assert str(refusal.value) == (
        "Trainer.optimizer() returned a class, and the JAX engine takes an optax.GradientTransformation, or a function "
        'of the named parameters that makes one. Return that, or set engine.name = "torch".'
    )


def build(extra: bool, spec: ModelSpec) -> torch.nn.Module:
    model = Small(spec)
    if extra:
        model.register_parameter("extra", torch.nn.Parameter(torch.ones(3)))
    return model


def test_a_model_that_has_changed_is_refused(folder: Path) -> None:
    before, after = partial(build, False), partial(build, True)
    train(returning(2, model=before), "torch")
    with pytest.raises(ResumeError, match=r"Trainer\.model\.source was "):
        train(returning(4, model=after), "torch")
    with pytest.raises(
        ResumeError, match=r"holds other parameters: extra was absent and is now 3\. Put the model back"
    ):
        train(returning(2, model=after), "torch", "model={init = 'runs/run'}", name="other")
    train(returning(2), "torch", name="plain")
    given = "stages.1.kl={beta = 0.5, reference = {path = 'runs/plain'}}"
    with pytest.raises(PlanError) as refusal:
        train(returning(2, model=before), "torch", given, name="given")
    what = "holds a decoder, and this run trains a model that build made. Give a reference of the same kind."
    assert what in str(refusal.value)
    assert len(train(returning(4, model=before), "torch")) == 4


def test_an_optimizer_of_the_other_engine_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        train(returning(optimizer=optax.sgd(1e-3)), "torch")
    assert str(refusal.value) == (
        "Trainer.optimizer() returned an optax transformation, and the torch engine takes a torch.optim.Optimizer "
        'class, or a function of the named parameters that makes one. Return that, or set engine.name = "jax".'
    )


def test_stages_that_ones_own_parts_would_pass_over_are_refused(folder: Path) -> None:
    small, loss = own("torch", "OwnModelTrainer"), own("torch", "KlTrainer")
    for kind, override, what in (
        (small, "stages.0.rope.theta=50000", "Trainer.model() makes the model, which does not see them"),
        (loss, "stages.0.z_loss=0.1", "Trainer.loss() is the whole objective, but the stage has z_loss"),
        (loss, "stages.0.loss_weight={web = 0.5}", "objective, but the stage has loss_weight. Leave it out."),
        (loss, 'stages.1.kl={beta = 1.0, direction = "reverse"}', 'the stage has kl.direction = "reverse"'),
    ):
        with pytest.raises(UsageError) as refusal:
            train(kind, "torch", override, name=what[:8])
        assert what in str(refusal.value)


@pytest.mark.parametrize("method", ["model", "loss"])
def test_what_is_not_a_function_is_refused(folder: Path, method: str) -> None:
    with pytest.raises(UsageError, match=rf"Trainer\.{method}\(\) returned 3\. Return a function of "):
        train(returning(**{method: 3}), "torch")


def test_the_evaluator_is_built_once(folder: Path) -> None:
    class Built(Returning):
        stop_at = 4
        built = 0

        def evaluator(self) -> Any:
            self.built += 1
            return lambda trainer: {"step": trainer.step}

    trainer = Built("run.toml", ["evaluate.every=1"], show=False).run()
    assert isinstance(trainer, Built)
    assert trainer.built == 1
    assert trainer.session.last_evaluation is not None
    assert trainer.session.last_evaluation.scores == {"step": 4.0}


def test_a_run_is_done_when_its_trainer_is(folder: Path) -> None:
    class Early(Trainer):
        @property
        def done(self) -> bool:
            return self.step == 3

    assert len(train(Early, "torch")) == 3


class OwnSteps(Returning):
    """Its steps are written with the engine's weights: a sign descent of the rate of the step."""

    stop_at = 4

    def val_step(self, batch: Batch) -> EvalStats:
        return EvalStats(figures_by_source(batch, self.engine.nats(batch)))

    def train_step(self, batch: Batch, now: StepSettings) -> StepStats:
        before = self.engine.evaluate(batch)
        self.descend(now.lr["matrix"])
        tokens = {name: part.tokens for name, part in before.by_source.items()}
        nats = {name: part.nats for name, part in before.by_source.items()}
        return StepStats(before.nats / before.tokens, before.tokens, 0.0, nats, tokens)

    def descend(self, rate: float) -> None:
        """Shrink every weight."""
        engine: Any = self.engine
        if hasattr(engine, "state"):
            shrink = jax.jit(lambda params: jax.tree.map(lambda weight: weight * jnp.float32(1 - rate), params))
            engine.state = engine.state._replace(params=shrink(engine.state.params))
            return
        with torch.no_grad():
            for weight in engine.model.parameters():
                weight.mul_(1 - rate)


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_of_ones_own_take_the_place_of_the_engines(folder: Path, engine: str) -> None:
    plain = Trainer("run.toml", [f"engine.name={engine}", "run.name=plain"], dry_run=True, show=False)
    with plain.open_session():
        plain.load()
        expected = plain.val_step(plain.batch(0, "validation"))
    trainer = OwnSteps("run.toml", [f"engine.name={engine}", "evaluate.every=1"], show=False)
    with trainer.open_session():
        trainer.load()
        found = trainer.val_step(trainer.batch(0, "validation"))
        assert found.nats == pytest.approx(expected.nats, rel=1e-5)
        assert found.tokens == expected.tokens
    whole = [step["loss"] for step in train(OwnSteps, engine, name="whole")]
    assert len(set(whole)) == 4
    train(type("Half", (OwnSteps,), {"stop_at": 2}), engine, name="parts")
    assert [step["loss"] for step in train(OwnSteps, engine, name="parts")] == whole
