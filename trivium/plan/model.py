"""`[model]`, the tokenizer and the weights it starts from -> the model's shape, and the rotary positions of each stage.

Rotary positions are the model's: a stage that asks for none keeps those that it was last trained with. A stage that
scales them stretches the context that the model was trained with until then. Nothing that comes
after a stage decides its positions, so that a longer stage may be appended to a run under way. Sliding layers keep
theirs where a stage does not give them others: what they see is near them in rows of any length.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trivium.config.schema import SIZES, Config, Model, Size
from trivium.config.stages import Rope, SlidingRope, Stage
from trivium.engine.make import counted_spec
from trivium.errors import ConfigError, Problem, ResumeError, SourceError
from trivium.model.foreign import with_rope
from trivium.model.spec import HEAD_DIM, ModelSpec, RopeSpec
from trivium.plan.foreign import foreign_spec, given_spec, refuse_foreign
from trivium.text.tokenizer import open_tokenizer, tokenizer_problem

FORM_KEYS = (  # of `[model]`, which are the shape's too
    *("qkv_bias", "norm", "activation", "gated", "rotary_dim", "attention_scale"),
    *("attention_softcap", "logit_softcap", "logit_scale", "embedding_scale"),
)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """The model's shape; None, with a reason, where its vocabulary or the weights it starts from are not known."""

    spec: ModelSpec | None
    gap: Problem | None = None
    ropes: tuple[RopeSpec, ...] = ()  # of each stage; empty where the weights that it starts from are not known


def plan_model(config: Config, stages: Sequence[Stage], weights: Path | None, largest_id: int) -> PlannedModel:
    """Resolve the shape; `weights` is the folder of `model.init`, `largest_id` the largest token id on disk.

    Raises ConfigError where the weights cannot be read, or have fewer tokens than the tokenizer.
    """
    if config.model.init is not None and weights is None:
        return PlannedModel(None)
    spec = _shape(config.model, stages, weights)
    ropes = stage_ropes(stages, config.model, spec)
    _refuse_layers(config.model, stages, spec)
    vocab = vocab_of(config, largest_id)
    if isinstance(vocab, Problem):
        return PlannedModel(None, vocab, ropes)
    if spec.foreign is not None:
        refuse_foreign(config, stages, spec, ropes)
    if weights is None and config.model.config is None:
        spec = replace(spec, vocab=vocab, foreign=spec.foreign and spec.foreign.changed(vocab_size=vocab))
    elif spec.vocab < vocab:
        what = f"is {spec.vocab:,}, but the tokenizer has {vocab:,} tokens. Use the model's own tokenizer, or raise it."
        raise ConfigError([Problem("model.vocab", what)])
    return PlannedModel(spec if spec.foreign is None else counted_spec(spec), None, ropes)


def _refuse_layers(model: Model, stages: Sequence[Stage], spec: ModelSpec) -> None:
    """ConfigError for every `drop_layers` beyond the model's last layer, and `sliding` where no layer slides."""
    asked = {"model.rope": model.rope} | {f"stages[{number}].rope": each.rope for number, each in enumerate(stages)}
    last = spec.layers - 1
    ropes = {where: rope for where, rope in asked.items() if rope is not None}
    problems = [
        Problem(f"{where}.drop_layers", f"has {max(rope.drop_layers)}, and the model's last layer is {last}. Lower it.")
        for where, rope in ropes.items()
        if rope.drop_layers and max(rope.drop_layers) > last
    ]
    problems += [
        Problem(f"{where}.sliding", "is given, but no layer of the model slides. Leave it out.")
        for where, rope in ropes.items()
        if rope.sliding is not None and not spec.sliding
    ]
    if problems:
        raise ConfigError(problems)


def stage_ropes(stages: Sequence[Stage], model: Model, spec: ModelSpec) -> tuple[RopeSpec, ...]:
    """The rotary positions of each stage; one that asks for none keeps those of the stage before."""
    ropes: list[RopeSpec] = []
    last = spec.rope
    # Where a stage stretches its positions, its rows are longer than the context that it stretches.
    trained = [spec.max_seq_len] if model.init is not None else []
    for stage in stages:
        context = model.max_seq_len or max(trained, default=stages[0].seq_len)
        last = _rope(stage.rope, last, context, bool(spec.sliding))
        ropes.append(last)
        if last.scaling is None:
            trained.append(stage.seq_len)
    return tuple(ropes)


def _rope(asked: Rope | None, own: RopeSpec, context: int, slides: bool) -> RopeSpec:
    """Rotary positions as asked for; a base and an original context that are not given are those so far.

    Where layers slide and nothing is asked for them, they keep those so far.
    """
    if asked is None:
        return own
    so_far = own.sliding or replace(own, dropped=())
    sliding = so_far if asked.sliding is None else _scaled(asked.sliding, so_far, context)
    dropped = own.dropped if asked.drop_layers is None else tuple(sorted(set(asked.drop_layers)))
    full = _scaled(asked, own, context)
    return replace(full, dropped=dropped, sliding=sliding if slides and sliding != full else None)


def _scaled(asked: SlidingRope, own: RopeSpec, context: int) -> RopeSpec:
    return RopeSpec(
        theta=own.theta if asked.theta is None else asked.theta,
        scaling=asked.scaling,
        factor=1.0 if asked.factor is None else asked.factor,
        original_seq_len=asked.original_seq_len or own.original_seq_len or (context if asked.scaling else 0),
        attention_factor=asked.attention_factor,
        beta_fast=asked.beta_fast,
        beta_slow=asked.beta_slow,
        low_freq_factor=asked.low_freq_factor,
        high_freq_factor=asked.high_freq_factor,
    )


def _shape(model: Model, stages: Sequence[Stage], weights: Path | None) -> ModelSpec:
    """All but the vocabulary as `[model]` asks for it; of weights that are given all but limits and positions."""
    if weights is None and model.is_foreign:
        size = asdict(_size(model)) if model.config is None else {}
        own = foreign_spec(model, size, max(stage.seq_len for stage in stages))
        context = own.max_seq_len
    elif weights is None:
        longest = model.max_seq_len or max(stage.seq_len for stage in stages)
        own, context = model_spec(model, 0, longest), model.max_seq_len or stages[0].seq_len
    else:
        try:
            own = given_spec(model, weights)
        except ResumeError as error:
            raise ConfigError([Problem("model.init", str(error))]) from error
        own = replace(own, max_seq_len=model.max_seq_len or own.max_seq_len)
        context = own.max_seq_len
    rope = _rope(model.rope, own.rope, context, bool(own.sliding))
    if weights is None and model.rope is not None and model.rope.sliding is None:
        rope = replace(rope, sliding=None)  # nothing was trained yet that sliding layers could keep
    return with_rope(own, rope, where="model.rope")


def model_spec(model: Model, vocab: int, max_seq_len: int) -> ModelSpec:
    """The shape that `[model]` describes by its numbers, or by the name of a size; rotary positions are not scaled."""
    size = _size(model)
    every = model.no_rope_every
    dropped = () if every is None else tuple(range(every - 1, size.layers, every))
    pattern = model.layers_pattern or "S"
    slides = [model.window is not None and pattern[layer % len(pattern)] == "S" for layer in range(size.layers)]
    return ModelSpec(
        **asdict(size),
        head_dim=model.head_dim or size.width // size.heads,
        vocab=vocab,
        max_seq_len=max_seq_len,
        qk_norm=bool(model.qk_norm),
        qk_norm_joint=model.qk_norm == "joint",
        window=model.window,
        sliding=tuple(layer for layer in range(size.layers) if slides[layer]),
        **{key: getattr(model, key) for key in FORM_KEYS},
        tied_embeddings=model.tied_embeddings,
        init_std=model.init_std,
        norm_eps=model.norm_eps,
        rope=RopeSpec(dropped=dropped),
    )


def _size(model: Model) -> Size:
    if model.size is not None:
        return SIZES[model.size]
    assert model.layers is not None, "a checked model has a size, layers and width, or init"
    assert model.width is not None
    heads = model.heads or max(1, model.width // HEAD_DIM)
    ffn = model.ffn or -(-model.width * 8 // (3 * 64)) * 64
    return Size(model.layers, model.width, heads, model.kv_heads or heads, ffn)


def vocab_of(config: Config, largest_id: int) -> int | Problem:
    """The vocabulary: the config's, else the tokenizer's, else (0) that of the weights it starts from."""
    if config.model.vocab is not None:
        return config.model.vocab
    try:
        tokenizer = open_tokenizer(config.tokenizer)
    except SourceError as error:
        return tokenizer_problem(error)
    if tokenizer is not None:
        return tokenizer.vocab
    if config.model.init is not None:
        return 0
    fix = f"Write vocab = {largest_id + 1} or more: the largest id is {largest_id:,}."
    fix = fix if largest_id else "Write it, or name a tokenizer."
    return Problem("model.vocab", f"is missing, and no tokenizer gives it. {fix}")
