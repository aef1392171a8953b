"""Models and losses of one's own in torch: the decoder's numbers where they are the decoder's, refusals where not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from tests.engine.own import OwnContract, steps, written
from tests.support.batches import TINY, make_batch
from tests.support.own_torch import Small, nats
from trivium.engine.base import Engine, EngineSettings, KlSettings, LossBatch, StageSettings
from trivium.engine.torch.attention import Masked
from trivium.engine.torch.engine import TorchEngine
from trivium.engine.torch.layers import Layer, RMSNorm, Rotation
from trivium.errors import UsageError
from trivium.model.spec import ModelSpec


class OwnDecoder(nn.Module):
    """The built-in decoder, from tokens, positions and documents."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.padded_vocab, spec.width)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.width, spec.norm_eps)
        self.unembedding = nn.Linear(spec.width, spec.padded_vocab, bias=False)

    @property
    def lm_head(self) -> nn.Linear:
        return self.unembedding

    def forward(self, tokens: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        slots = torch.arange(tokens.shape[1])
        sees = (documents[:, :, None] == documents[:, None]) & (slots[:, None] >= slots)
        rotation = Rotation.table(self.spec.rope, self.spec.head_dim, 64, tokens.device).at(positions)
        flows = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        x = self.embedding(tokens).to(flows)
        for layer in self.layers:
            x = layer(x, rotation, Masked(sees[:, None]))
        normed: Tensor = self.norm(x)
        return normed


class Drawn(OwnDecoder):
    def init_weight(self, name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor | None:
        assert isinstance(generator, torch.Generator)
        return torch.zeros(shape) if name == "norm.weight" else None


def smoothed(hidden: Tensor, lm_head: Tensor, batch: LossBatch) -> Tensor:
    return cross_entropy(hidden @ lm_head.T, batch.targets, reduction="none", label_smoothing=0.5)


class TestTorchOwn(OwnContract):
    decoder = OwnDecoder
    drawn = Drawn
    nats = staticmethod(nats)
    smoothed = staticmethod(smoothed)

    def make(self, settings: EngineSettings) -> Engine:
        return TorchEngine(settings)

    def test_cross_entropy_of_ones_own_gives_the_same_numbers_in_bfloat16(self) -> None:
        self.compare_cross_entropy("bfloat16")


def refusal(model: Any) -> str:
    """Why a model is refused."""

    def make(spec: ModelSpec) -> Any:
        return model(spec)

    with pytest.raises(UsageError) as refused:
        TorchEngine(EngineSettings(TINY, device="cpu", make_model=make))
    return str(refused.value).removesuffix(". docs/trainer.md has what a model needs.")


def test_a_model_that_lacks_something_is_refused_with_all_that_it_lacks() -> None:
    assert refusal(lambda spec: 3) == "Trainer.model(): refusal.make made a int, which is not an nn.Module"
    assert refusal(lambda spec: nn.Linear(3, 3)) == (
        "Trainer.model(): refusal.make made a Linear, which has a forward that does not take tokens, positions, "
        "documents; has no layers (an nn.ModuleList); has no lm_head (a module whose weight has 50 to 128 rows and the "
        "width of the hidden states)"
    )


def test_an_empty_list_of_layers_is_refused_as_empty() -> None:
    class Empty(Small):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.layers = nn.ModuleList()

    what = "made a Empty, which has an empty list of layers: put one module or more in it"
    assert refusal(Empty) == f"Trainer.model(): refusal.make {what}"


class Dropping(Small):
    """Half of its hidden states are zeros while it trains."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return dropout(super().forward(*inputs), 0.5, self.training)


def test_dropout_acts_in_steps_alone(tmp_path: Path) -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu", make_model=Dropping, recompute="full"))
    plain = TorchEngine(EngineSettings(TINY, device="cpu", make_model=Small))
    plain_first, dropped_first = steps(plain)[0], steps(engine)[0]
    assert dropped_first.loss != pytest.approx(plain_first.loss, rel=1e-4)
    engine.save(tmp_path / "saved").wait()
    batch = make_batch(seed=7)
    found = engine.evaluate(batch)
    assert engine.evaluate(batch) == found
    assert engine.nats(batch).sum() == pytest.approx(found.nats, rel=1e-5)
    assert written(engine) == written(engine)
    asked = [step.loss for step in steps(engine)]
    engine.load(tmp_path / "saved")
    assert [step.loss for step in steps(engine)] == asked  # evaluations drew nothing


def test_a_frozen_reference_does_not_drop(tmp_path: Path) -> None:
    engine = TorchEngine(EngineSettings(TINY, device="cpu", make_model=Dropping))
    engine.save(tmp_path / "saved").wait()
    frozen = [float(engine.nats(make_batch(seed=seed)).sum()) for seed in range(3)]
    engine.enter(StageSettings(16, kl=KlSettings(0.5, tmp_path / "saved")))
    for step, nats_of_batch in zip(steps(engine), frozen, strict=True):
        assert step.extra["reference_loss"] * step.loss_tokens == pytest.approx(nats_of_batch, rel=1e-5)


def test_losses_without_a_gradient_are_refused() -> None:
    def detached(hidden: Tensor, lm_head: Tensor, batch: LossBatch) -> Tensor:
        return nats(hidden, lm_head, batch.targets).detach()

    with pytest.raises(UsageError) as refused:
        steps(TorchEngine(EngineSettings(TINY, device="cpu", token_losses=detached)))
    assert str(refused.value) == (
        "the function of Trainer.loss() returned losses without a gradient. Compute them from hidden and lm_head, "
        "without detach() and torch.no_grad()."
    )


def test_a_model_that_has_what_it_may_not_have_is_refused() -> None:
    class Buffered(Small):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.register_buffer("table", torch.zeros(3))
            self.lm_head = nn.Linear(spec.width, spec.vocab)

    class Shared(Small):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.embedding = nn.Embedding(spec.vocab, spec.width)
            self.lm_head.weight = self.embedding.weight

    assert refusal(Buffered) == (
        "Trainer.model(): refusal.make made a Buffered, which has an lm_head with a bias, which logits do not use; "
        "has buffers (table), which are not filled: compute them in forward"
    )
    assert refusal(Shared) == (
        "Trainer.model(): refusal.make made a Shared, which has one parameter in two modules: let lm_head be the "
        "embedding itself"
    )


def test_an_embedding_may_be_the_lm_head() -> None:
    class Tied(Small):
        def __init__(self, spec: ModelSpec) -> None:
            super().__init__(spec)
            self.lm_head = self.embedding  # type: ignore[assignment]

    engine = TorchEngine(EngineSettings(TINY, device="cpu", make_model=Tied))
    assert "lm_head.weight" not in engine.model.weights()
    assert engine.model.lm_head.weight is engine.model.weights()["embedding.weight"]


def test_hidden_states_that_do_not_fit_the_lm_head_are_refused() -> None:
    class Cut(Small):
        def forward(self, *inputs: Tensor) -> Tensor:
            return super().forward(*inputs)[..., :5]

    with pytest.raises(UsageError) as refused:
        TorchEngine(EngineSettings(TINY, device="cpu", make_model=Cut)).evaluate(make_batch())
    assert str(refused.value) == (
        "Trainer.model(): Cut returned (4, 16, 5) where hidden states (4, 16, 32) are expected: rows, slots, the "
        "lm_head's width."
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own ways
def test_layers_of_ones_own_model_are_compiled() -> None:
    settings = [EngineSettings(TINY, device="cpu", make_model=Small, compile=compiles) for compiles in (False, True)]
    plain, compiled = (steps(TorchEngine(each)) for each in settings)
    assert [step.loss for step in compiled] == pytest.approx([step.loss for step in plain], rel=1e-4)
