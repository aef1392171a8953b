"""`[model]`, the tokenizer and the weights it starts from -> the model's shape, and the rotary positions of each stage.

Rotary positions are the model's: a stage that asks for none keeps those that it was last trained with. A stage that
scales them stretches the context that the model was trained with until then. Nothing that comes
after a stage decides its positions, so that a longer stage may be appended to a run under way.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trivium.config.schema import ANY_FAMILY, OWN_FAMILY, SIZES, Config, Model, Size
from trivium.config.stages import Rope, Stage
from trivium.engine.make import counted_spec
from trivium.errors import ConfigError, Problem, ResumeError, SourceError
from trivium.model.folder import is_saved, read_spec
from trivium.model.foreign import KEYS, folder_spec, keys_spec, table_spec, with_rope
from trivium.model.huggingface import CONFIG_FILE, read_table
from trivium.model.spec import HEAD_DIM, ModelSpec, RopeSpec
from trivium.text.tokenizer import open_tokenizer, tokenizer_problem

FOREIGN_KEYS = ("vocab", "tied_embeddings", "init_std", "norm_eps")  # beside sizes: absent, they are the family's


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
    _refuse_dropped(config.model, stages, spec)
    vocab = vocab_of(config, largest_id)
    if isinstance(vocab, Problem):
        return PlannedModel(None, vocab, ropes)
    if spec.foreign is not None:
        _refuse_foreign(config, stages, spec, ropes)
    if weights is None and config.model.config is None:
        spec = replace(spec, vocab=vocab, foreign=spec.foreign and spec.foreign.changed(vocab_size=vocab))
    elif spec.vocab < vocab:
        what = f"is {spec.vocab:,}, but the tokenizer has {vocab:,} tokens. Use the model's own tokenizer, or raise it."
        raise ConfigError([Problem("model.vocab", what)])
    return PlannedModel(spec if spec.foreign is None else counted_spec(spec), None, ropes)


def _refuse_foreign(config: Config, stages: Sequence[Stage], spec: ModelSpec, ropes: Sequence[RopeSpec]) -> None:
    """ConfigError for what a model of transformers cannot do here, of all stages."""
    assert spec.foreign is not None
    problems = []
    if config.engine.name == "jax":
        what = f'is "jax", which trains trivium\'s own decoder alone, and the model is a {spec.foreign.family}'
        problems.append(Problem("engine.name", f'{what}. Write name = "torch".'))
    positions = spec.foreign.table.get("rope_parameters")
    for number, (stage, rope) in enumerate(zip(stages, ropes, strict=True)):
        try:
            with_rope(spec, rope)
        except ConfigError as error:
            problems += [Problem(f"stages[{number}].{each.where}", each.what) for each in error.problems]
        if not positions and stage.seq_len > spec.max_seq_len:
            what = (
                f"is {stage.seq_len:,}, and {spec.foreign.family} has {spec.max_seq_len:,} learnt positions. Lower it."
            )
            problems.append(Problem(f"stages[{number}].seq_len", what))
    if problems:
        raise ConfigError(problems)


def _refuse_dropped(model: Model, stages: Sequence[Stage], spec: ModelSpec) -> None:
    """ConfigError for every `drop_layers` that names a layer which the model does not have."""
    asked = {"model.rope": model.rope} | {f"stages[{number}].rope": each.rope for number, each in enumerate(stages)}
    last = spec.layers - 1
    problems = [
        Problem(f"{where}.drop_layers", f"has {max(rope.drop_layers)}, and the model's last layer is {last}. Lower it.")
        for where, rope in asked.items()
        if rope is not None and rope.drop_layers and max(rope.drop_layers) > last
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
        last = _rope(stage.rope, last, model.max_seq_len or max(trained, default=stages[0].seq_len))
        ropes.append(last)
        if last.scaling is None:
            trained.append(stage.seq_len)
    return tuple(ropes)


def _rope(asked: Rope | None, own: RopeSpec, context: int) -> RopeSpec:
    """Rotary positions as asked for; a base and an original context that are not given are those so far."""
    if asked is None:
        return own
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
        dropped=own.dropped if asked.drop_layers is None else tuple(sorted(set(asked.drop_layers))),
    )


def _shape(model: Model, stages: Sequence[Stage], weights: Path | None) -> ModelSpec:
    """All but the vocabulary as `[model]` asks for it; of weights that are given all but limits and positions."""
    if weights is None and model.is_foreign:
        own = _foreign_spec(model, max(stage.seq_len for stage in stages))
        context = own.max_seq_len
    elif weights is None:
        longest = model.max_seq_len or max(stage.seq_len for stage in stages)
        own, context = model_spec(model, 0, longest), model.max_seq_len or stages[0].seq_len
    else:
        try:
            own = _folder_spec(model, weights)
        except ResumeError as error:
            raise ConfigError([Problem("model.init", str(error))]) from error
        own = replace(own, max_seq_len=model.max_seq_len or own.max_seq_len)
        context = own.max_seq_len
    return replace(own, rope=_rope(model.rope, own.rope, context))


def _folder_spec(model: Model, weights: Path) -> ModelSpec:
    """The shape of the weights that are given, as the family that is asked for reads them."""
    if not model.is_foreign or is_saved(weights):
        own = read_spec(weights)
        if model.family == OWN_FAMILY and own.foreign is not None:
            what = f'is "{OWN_FAMILY}", but the weights are of the family {own.foreign.family}, which the decoder lacks'
            raise ConfigError([Problem("model.family", f"{what}. Leave family out.")])
    else:
        own = folder_spec(weights, dict(model.options))
    _refuse_other_family(model, own, str(weights))
    return own


def _foreign_spec(model: Model, longest: int) -> ModelSpec:
    """The shape that a config.json has, or that keys describe; the vocabulary of keys is known later."""
    assert model.family is not None
    if model.config is not None:
        path = Path(model.config)
        path = path / CONFIG_FILE if path.is_dir() else path
        given = {KEYS[key]: getattr(model, key) for key in FOREIGN_KEYS if key in model.model_fields_set}
        spec = table_spec(read_table(path), str(path), {**given, **model.options})
        _refuse_other_family(model, spec, str(path))
        return spec
    size = asdict(_size(model))
    given = {key: getattr(model, key) for key in (*FOREIGN_KEYS, "head_dim") if key in model.model_fields_set}
    keys = {**size, **given, "max_seq_len": model.max_seq_len or longest, "vocab": model.vocab or 1}
    # What stands for a default here may be a key that a family does not have.
    optional = [key for key in ("kv_heads", "ffn") if key not in model.model_fields_set]
    return keys_spec(model.family, keys, dict(model.options), optional)


def _refuse_other_family(model: Model, found: ModelSpec, where: str) -> None:
    family = None if found.foreign is None else found.foreign.family
    if model.is_foreign and model.family != ANY_FAMILY and model.family != family:
        what = f'is "{model.family}", but {where} has a model of the family {family or OWN_FAMILY}'
        raise ConfigError([Problem("model.family", f"{what}. Leave family out, or give another folder.")])


def model_spec(model: Model, vocab: int, max_seq_len: int) -> ModelSpec:
    """The shape that `[model]` describes by its numbers, or by the name of a size; rotary positions are not scaled."""
    size = _size(model)
    every = model.no_rope_every
    dropped = () if every is None else tuple(range(every - 1, size.layers, every))
    return ModelSpec(
        **asdict(size),
        head_dim=model.head_dim or size.width // size.heads,
        vocab=vocab,
        max_seq_len=max_seq_len,
        qk_norm=model.qk_norm,
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
