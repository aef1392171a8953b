"""`[model]`, the tokenizer and the weights it starts from -> the model's shape, and what each stage has of it.

What belongs to the model stays with the model: its rotary positions, the tokens that it knows, and the parts of it that
are frozen are those of the stage before where a stage says nothing.

Rotary positions are the model's: a stage that asks for none keeps those that it was last trained with. A stage that
scales them stretches the context that the model was trained with until then. Nothing that comes
after a stage decides its positions, so that a longer stage may be appended to a run under way. Sliding layers keep
theirs where a stage does not give them others: what they see is near them in rows of any length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from traceback import extract_tb
from typing import Any

from trivium.config.schema import SIZES, Config, Model, Size, Tokenizer
from trivium.config.stages import Rope, SlidingRope, Stage
from trivium.engine.make import counted_spec, foreign_files, own_parameters, refuse_undivided, weight_shapes
from trivium.errors import ConfigError, Problem, ResumeError, SourceError, TriviumError
from trivium.files import read_json
from trivium.model.folder import is_saved, read_spec
from trivium.model.foreign import with_rope, with_vocab
from trivium.model.parts import all_parts, last_layer, name_problem, parts_of, shortest_names
from trivium.model.spec import HEAD_DIM, ModelSpec, RopeSpec
from trivium.model.starting import StartingWeights, from_checkpoint, from_files, from_huggingface
from trivium.plan.settings import family_model
from trivium.plan.shape.foreign import foreign_problems, foreign_spec, given_spec, refuse_empty_freezes
from trivium.plan.stage import PlannedStage
from trivium.run.folder import weights_folder
from trivium.text.tokenizer import open_tokenizer, tokenizer_problem

FORM_KEYS = (  # of `[model]`, which are the shape's too
    *("qkv_bias", "norm", "activation", "gated", "rotary_dim", "attention_scale"),
    *("attention_softcap", "logit_softcap", "logit_scale", "embedding_scale"),
)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """The model's shape; None, with a reason, where its vocabulary or the weights it starts from are not known."""

    spec: ModelSpec | None
    gaps: tuple[Problem, ...] = ()
    ropes: tuple[RopeSpec, ...] = ()  # of each stage; empty where the weights that it starts from are not known
    vocabs: tuple[int, ...] = ()  # tokens that it knows in each stage; empty where the vocabulary is not known
    freezes: tuple[tuple[str, ...], ...] = ()  # frozen parts of each stage, as ropes
    teachers: tuple[ModelSpec | None, ...] = ()  # of each stage
    warnings: tuple[Problem, ...] = ()

    def in_stage(self, stage: PlannedStage) -> PlannedStage:
        """A stage with what it has of the model, as far as that is known."""
        at = slice(stage.index, stage.index + 1)
        known = {"rope": self.ropes, "vocab": self.vocabs, "freeze": self.freezes, "teacher": self.teachers}
        kept: dict[str, Any] = {key: values[at][0] for key, values in known.items() if values[at]}
        return replace(stage, **kept)


def plan_model(config: Config, stages: Sequence[Stage], weights: Path | None, largest_id: int) -> PlannedModel:
    """Resolve the shape; `weights` is the folder of `model.init`, `largest_id` the largest token id on disk.

    Raises ConfigError where the weights cannot be read, or stages ask for what the model cannot have.
    """
    if config.model.init is not None and weights is None:
        return PlannedModel(None)
    spec = _shape(config.model, stages, weights)
    ropes = stage_ropes(stages, config.model, spec)
    freezes, problems = stage_freezes(stages, spec)
    problems = [*_layer_problems(config.model, stages, spec), *problems]
    vocab = vocab_of(config, largest_id)
    if isinstance(vocab, Problem):
        if problems:
            raise ConfigError(problems)
        return PlannedModel(None, (vocab,), ropes, freezes=freezes)
    warnings = []
    if spec.foreign is not None:
        problems += foreign_problems(config, stages, spec, ropes, vocab)
    if weights is not None and spec.vocab < vocab and config.model.vocab is None:
        warnings.append(_grown_by_tokenizer(spec.vocab, vocab))
    has_own = weights is not None or config.model.config is not None
    spec = with_vocab(spec, max(vocab, spec.vocab) if has_own else vocab)
    if spec.foreign is None:
        spec = _with_family(config, spec, weights)
    vocabs = stage_vocabs(stages, spec)
    found = [find_teacher(index, stage, vocabs[index], config) for index, stage in enumerate(stages)]
    tensor = config.engine.parallel.tensor
    problems += [*vocab_problems(stages, spec, tensor), *(each.problem for each in found if each.problem is not None)]
    if problems:
        raise ConfigError(problems)
    gaps = tuple(each.gap for each in found if each.gap is not None)
    warnings += [each.warning for each in found if each.warning is not None]
    if spec.foreign is not None:
        spec = counted_spec(spec)
        refuse_empty_freezes(freezes, spec)
    refuse_undivided(spec, tensor)
    return PlannedModel(spec, gaps, ropes, vocabs, freezes, tuple(each.spec for each in found), tuple(warnings))


def starting_weights(config: Config, spec: ModelSpec, weights: Path) -> StartingWeights:
    """What a model takes from a folder of either kind; ConfigError where a tensor is missing or does not fit."""
    had = min(read_spec(weights, foreign=spec.foreign is not None).vocab, spec.vocab)
    stored = with_vocab(spec, had)
    if spec.foreign is not None and not is_saved(weights):
        found = from_files(weights, foreign_files(stored, weights))
    elif is_saved(weights):
        found = from_checkpoint(weights, stored, optimizer=config.model.init_optimizer)
    else:
        found = from_huggingface(weights, stored, weight_shapes(stored))
    new = {f"{spec.vocab - had:,} tokens": "the mean of the rows of the others"} if had < spec.vocab else {}
    return replace(found, added={**found.added, **new})


def _with_family(config: Config, spec: ModelSpec, weights: Path | None) -> ModelSpec:
    """The shape with the function that makes the model, where `model.family` names one, and its parameters counted."""
    make = family_model(config)
    if make is None:
        return spec
    if weights is not None and spec.own != make.path:
        found = f"a model that {spec.own} made" if spec.own else "a decoder"
        what = f'is "{make.path}", but {weights} holds {found}. Give model.init the weights of the same model.'
        raise ConfigError([Problem("model.family", what)])
    spec = replace(spec, own=make.path, own_parameters=None)
    try:
        return replace(spec, own_parameters=own_parameters(spec, make, config.engine.name))
    except TriviumError:
        raise
    except Exception as error:  # whatever their function does
        last = extract_tb(error.__traceback__)[-1]
        what = f'is "{make.path}", which fails when it is called with the ModelSpec, in {last.filename}:{last.lineno}'
        raise ConfigError([Problem("model.family", f"{what}: {type(error).__name__}: {error}.")]) from error


def _grown_by_tokenizer(had: int, vocab: int) -> Problem:
    what = (
        f"the weights of model.init know {had:,} tokens and the tokenizer has {vocab:,}: {vocab - had:,} rows are new"
    )
    return Problem("model.vocab", f"{what}, the mean of the others. Write model.vocab = {vocab} if that is meant.")


def stage_vocabs(stages: Sequence[Stage], spec: ModelSpec) -> tuple[int, ...]:
    """The tokens that the model knows in each stage."""
    return tuple(accumulate((stage.vocab or 0 for stage in stages), max, initial=spec.vocab))[1:]


def vocab_problems(stages: Sequence[Stage], spec: ModelSpec, tensor: int) -> Iterator[Problem]:
    """A vocabulary only grows, and ranks of the tensor axis share its rows evenly."""
    before = (spec.vocab, *stage_vocabs(stages, spec))
    for index, stage in enumerate(stages):
        if stage.vocab is not None and stage.vocab <= before[index]:
            what = f"is {stage.vocab:,}, and the model knows {before[index]:,} tokens before this stage"
            yield Problem(f"stages[{index}].vocab", f"{what}: a vocabulary only grows. Write more, or leave it out.")
        elif stage.vocab is not None and (rows := with_vocab(spec, stage.vocab).padded_vocab) % tensor:
            what = f"is {stage.vocab:,}, and engine.parallel.tensor = {tensor} does not divide {rows:,} rows"
            yield Problem(f"stages[{index}].vocab", f"{what} of the vocabulary. Write more tokens, or lower the axis.")


def stage_freezes(stages: Sequence[Stage], spec: ModelSpec) -> tuple[tuple[tuple[str, ...], ...], list[Problem]]:
    """The frozen parts of each stage, by the fewest names, and what is wrong with those that are written."""
    found: list[tuple[str, ...]] = []
    problems: list[Problem] = []
    for index, stage in enumerate(stages):
        kept = found[-1] if found else ()
        if stage.freeze is not None:
            wrong = list(_freeze_problems(f"stages[{index}].freeze", stage.freeze, spec))
            problems += wrong
            kept = kept if wrong else shortest_names(parts_of(stage.freeze, spec), spec)
        found.append(kept)
    return tuple(found), problems


def _freeze_problems(where: str, names: Sequence[str], spec: ModelSpec) -> Iterator[Problem]:
    for name in names:
        fault, last = name_problem(name), last_layer(name)
        if fault is not None:
            yield Problem(where, f'"{name}" {fault}')
        elif last is not None and last >= spec.layers:
            what = f'"{name}" goes beyond the model, whose last layer is {spec.layers - 1}'
            yield Problem(where, f"{what}. Write layers.0-{spec.layers - 1} or less.")
    sound = all(name_problem(name) is None and (last_layer(name) or 0) < spec.layers for name in names)
    if sound and parts_of(names, spec) == all_parts(spec):
        yield Problem(where, "freezes the whole model, so that nothing would be trained. Leave out a part.")


@dataclass(frozen=True, slots=True)
class FoundTeacher:
    """The shape of a stage's teacher, or why it is not known or cannot be."""

    spec: ModelSpec | None = None
    gap: Problem | None = None
    problem: Problem | None = None
    warning: Problem | None = None


def find_teacher(index: int, stage: Stage, vocab: int, config: Config) -> FoundTeacher:
    """Look at the folder that a stage is distilled from, if any: its vocabulary must be the stage's."""
    asked, where = stage.distill, f"stages[{index}].distill"
    if asked is None or asked.path is None:
        return FoundTeacher()
    if asked.top_k is not None and asked.top_k >= vocab:
        what = f"is {asked.top_k:,}, and the model knows {vocab:,} tokens. Write less, or leave it out for all of them."
        return FoundTeacher(problem=Problem(f"{where}.top_k", what))
    try:
        folder = weights_folder(Path(asked.path), asked.step)
        spec = read_spec(folder)
    except ResumeError as error:
        return FoundTeacher(gap=Problem(f"{where}.path", f"{str(error).split('. ')[0]}: its shape is not known."))
    except ConfigError as error:
        return FoundTeacher(problem=Problem(f"{where}.path", "; ".join(map(str, error.problems))))
    if spec.own is not None:
        what = f"{folder} holds a model that {spec.own} made, and teachers are decoders. Give another."
        return FoundTeacher(problem=Problem(f"{where}.path", what))
    if spec.vocab != vocab:
        what = f"{folder} has a vocabulary of {spec.vocab:,}, and the model has {vocab:,} in this stage"
        return FoundTeacher(problem=Problem(f"{where}.path", f"{what}. Give a teacher with the same tokens."))
    return FoundTeacher(spec, warning=_other_tokenizer(f"{where}.path", folder, config))


def _other_tokenizer(where: str, folder: Path, config: Config) -> Problem | None:
    """Tokens of another tokenizer mean something else, however many they are; None where one is not known."""
    theirs = Tokenizer(path=str(folder)) if (folder / "tokenizer.json").is_file() else None
    try:
        if (folder.parent / "state.json").is_file():
            theirs = Config.model_validate(read_json(folder.parent / "state.json")["config"]).tokenizer
        own, other = (open_tokenizer(each, fetch=False) for each in (config.tokenizer, theirs))
    except (SourceError, OSError, ValueError, KeyError):
        return None
    if own is None or other is None or own.fingerprint == other.fingerprint:
        return None
    what = f"{folder} was trained with another tokenizer, whose {other.vocab:,} tokens mean something else"
    return Problem(where, f"{what}. Give a teacher with the run's own tokenizer, unless both are known to agree.")


def _layer_problems(model: Model, stages: Sequence[Stage], spec: ModelSpec) -> list[Problem]:
    """Every `drop_layers` beyond the model's last layer, and `sliding` where no layer slides."""
    asked = {"model.rope": model.rope} | {f"stages[{number}].rope": each.rope for number, each in enumerate(stages)}
    last = spec.layers - 1
    ropes = {where: rope for where, rope in asked.items() if rope is not None}
    problems = [
        Problem(f"{where}.drop_layers", f"has {max(rope.drop_layers)}, and the model's last layer is {last}. Lower it.")
        for where, rope in ropes.items()
        if rope.drop_layers and max(rope.drop_layers) > last
    ]
    what = "is given, but no layer of the model slides. Leave it out."
    if spec.foreign is not None:
        what = "is given, but sliding layers of a model of transformers keep theirs. Leave it out."
    asked_of_sliding = [where for where, rope in ropes.items() if rope.sliding is not None and not spec.sliding]
    return [*problems, *(Problem(f"{where}.sliding", what) for where in asked_of_sliding)]


def stage_ropes(stages: Sequence[Stage], model: Model, spec: ModelSpec) -> tuple[RopeSpec, ...]:
    """The rotary positions of each stage; one that asks for none keeps those of the stage before."""
    ropes: list[RopeSpec] = []
    last = spec.rope
    # Where positions are stretched, rows are longer than the context that is stretched.
    stretched = spec.rope.original_seq_len if spec.rope.scaling is not None else 0
    trained = [stretched or spec.max_seq_len] if model.init is not None else []
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
    original = own.original_seq_len
    if asked.scaling is not None and (own.scaling is None or not original):
        original = max(original, context)  # what was stretched once may have been trained in longer rows since
    return RopeSpec(
        theta=own.theta if asked.theta is None else asked.theta,
        scaling=asked.scaling,
        factor=1.0 if asked.factor is None else asked.factor,
        original_seq_len=asked.original_seq_len or original,
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
        tokenizer = open_tokenizer(config.tokenizer, fetch=False)
    except SourceError as error:
        return tokenizer_problem(error)
    if tokenizer is not None:
        return tokenizer.vocab
    if config.model.init is not None:
        return 0
    fix = f"Write vocab = {largest_id + 1} or more: the largest id is {largest_id:,}."
    fix = fix if largest_id else "Write it, or name a tokenizer."
    return Problem("model.vocab", f"is missing, and no tokenizer gives it. {fix}")
