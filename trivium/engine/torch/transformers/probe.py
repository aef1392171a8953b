"""A model of transformers on the meta device -> what it asks of attention, how it makes logits, and what it costs.

One pass over a few slots, in which nothing is computed, tells what a config does not: whether every layer lets its
attention be replaced, with which window and scale, and how many products a token takes. So a family that nobody has
looked at is either held rightly or refused in words. Logits are compared on two slots, with the model and the lm_head
replaced by a few numbers: softmax caps and scales must be those that the spec has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.modeling_outputs import MoeModelOutputWithPast

from trivium.engine.torch.transformers import attention, experts
from trivium.errors import ConfigError, Problem
from trivium.model.spec import ModelSpec

SLOTS = 8
KINDS = ("full_attention", "sliding_attention")
MIXES_SLOTS = (nn.Conv1d, nn.LSTM, nn.GRU)  # in a layer: what would mix documents beside attention


@dataclass(frozen=True, slots=True)
class Probed:
    """What one pass has shown."""

    token_weights: int  # a token is multiplied by
    attention: tuple[tuple[int, int, float], ...]  # of each call: FLOPs for a key, window and cap (0: none)


def probe(inner: Any, layers: nn.ModuleList, spec: ModelSpec) -> Probed:
    """What a model does; ConfigError, with all that is known of it, where it is nothing that can be trained here."""
    counter = FlopCounterMode(display=False)
    with counter:
        recorder = meta_pass(inner, spec)
    flops = _flops_of_products(counter)
    problems = [*_attention_problems(inner, layers, recorder), *_logit_problems(inner, spec)]
    if problems:
        raise refusal(spec, "; ".join(dict.fromkeys(problems)))
    head = inner.get_output_embeddings().weight
    asked = zip(recorder.key_flops, recorder.asked, strict=True)
    attention_calls = tuple((each, how.window or 0, how.softcap or 0.0) for each, how in asked)
    return Probed(flops // (2 * SLOTS) + head.numel(), attention_calls)


def refusal(spec: ModelSpec, why: str) -> ConfigError:
    """A model that cannot be trained here, by its family's name."""
    assert spec.foreign is not None
    instead = "Give a model of another family, or one that trivium has itself."
    return ConfigError([Problem("model.family", f'"{spec.foreign.family}" cannot be trained here: {why}. {instead}')])


def meta_pass(inner: Any, spec: ModelSpec) -> attention.Recorder:
    """What a pass of SLOTS tokens without values asks of attention."""
    recorder = attention.Recorder()
    tokens = torch.zeros(1, SLOTS, dtype=torch.long, device="meta")
    positions = torch.arange(SLOTS, device="meta")[None]
    try:
        with _experts_counted(inner), torch.no_grad():
            inner.base_model(input_ids=tokens, position_ids=positions, use_cache=False, layout=recorder)
    except Exception as error:  # whatever a family's own code does with what it does not expect
        raise refusal(spec, f"a pass without values fails ({type(error).__name__}: {str(error)[:200]})") from error
    return recorder


def _flops_of_products(counter: FlopCounterMode) -> int:
    """FLOPs of all products but attention's own and those of rotary positions."""
    counts = counter.get_flop_counts()
    of_rotary = [sum(each.values()) for name, each in counts.items() if name.endswith(("rotary_emb", "rotary_embs"))]
    return int(counter.get_total_flops() - sum(of_rotary))


def _attention_problems(inner: Any, layers: nn.ModuleList, recorder: attention.Recorder) -> Iterator[str]:
    asking = {id(module) for module in recorder.modules}
    silent = [n for n, layer in enumerate(layers) if not asking & {id(module) for module in layer.modules()}]
    if silent:
        shown = ", ".join(map(str, silent[:3])) + (", ..." if len(silent) > 3 else "")
        yield f"{len(silent)} of its {len(layers)} layers ({shown}) ask for no attention, so that documents mix there"
    mixing = {type(module).__name__ for module in layers.modules() if isinstance(module, MIXES_SLOTS)}
    if mixing:
        yield f"its layers have {', '.join(sorted(mixing))}, which mixes neighbouring documents"
    yield from recorder.surprises
    kinds = getattr(inner.config, "layer_types", None) or ()
    others = sorted(set(kinds) - set(KINDS))
    if others:
        yield f"its layers are of other kinds than full and sliding attention ({', '.join(others)})"
    if len(kinds) == len(recorder.asked):
        windows = {
            kind: {how.window for how, own in zip(recorder.asked, kinds, strict=True) if own == kind} for kind in kinds
        }
        if None in windows.get("sliding_attention", ()) or windows.get("full_attention", {None}) != {None}:
            yield "its sliding layers do not name their window to attention"


def _logit_problems(inner: Any, spec: ModelSpec) -> Iterator[str]:
    """Compare what the model makes of an lm_head's product with what the spec says."""
    head: Any = inner.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        yield "it has no lm_head that is a linear layer"
        return
    hidden = torch.linspace(-3, 3, 2 * spec.width, device="cpu").view(1, 2, spec.width)
    product = torch.tensor([[[-40.0, -1.0, 0.3], [0.0, 2.0, 90.0]]], device="cpu")
    seen: list[Tensor] = []

    def stand_in(states: Tensor) -> Tensor:
        seen.append(states)
        return product.clone()

    with torch.device("cpu"), torch.no_grad():
        output = _Output(last_hidden_state=hidden)  # type: ignore[arg-type]
        with _replaced(inner.base_model, lambda *_, **__: output), _replaced(head, stand_in):
            try:
                logits = inner(input_ids=torch.zeros(1, 2, dtype=torch.long), use_cache=False).logits
            except Exception as error:  # as above
                yield f"its logits cannot be looked at ({type(error).__name__}: {str(error)[:200]})"
                return
    expected = product * spec.logit_scale
    if spec.logit_softcap is not None:
        expected = spec.logit_softcap * torch.tanh(expected / spec.logit_softcap)
    same_input = len(seen) == 1 and seen[0].shape == hidden.shape and torch.equal(seen[0], hidden)
    if not same_input or logits.shape != product.shape or not torch.allclose(logits, expected, rtol=1e-5):
        yield "it makes logits of hidden states in a way that is not built (other than a scale and a soft cap)"


class _Output(MoeModelOutputWithPast):
    """A model's output with nothing in it but hidden states."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _replaced(module: nn.Module, forward: Any) -> Iterator[None]:
    """Inside, another function is a module's forward pass."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@contextmanager
def _experts_counted(inner: Any) -> Iterator[None]:
    """Inside, experts run by batched products, which have shapes and counts without values."""
    inner.set_experts_implementation(experts.COUNTED)
    try:
        yield
    finally:
        inner.set_experts_implementation(experts.NAME)
