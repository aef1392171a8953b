"""`[model]` with a family of transformers, and the weights it starts from -> a model's shape, or what it cannot do."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trivium.config.schema import ANY_FAMILY, OWN_FAMILY, Config, Model
from trivium.config.stages import Stage
from trivium.errors import ConfigError, Problem
from trivium.model.folder import is_saved, read_spec
from trivium.model.foreign import KEYS, folder_spec, keys_spec, table_spec, with_rope
from trivium.model.huggingface import CONFIG_FILE, read_table
from trivium.model.parts import all_parts, parts_of
from trivium.model.spec import ModelSpec, RopeSpec

FOREIGN_KEYS = ("vocab", "tied_embeddings", "init_std", "norm_eps")  # beside sizes: absent, they are the family's


def given_spec(model: Model, weights: Path) -> ModelSpec:
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


def foreign_spec(model: Model, size: Mapping[str, int], longest: int) -> ModelSpec:
    """The shape that a config.json has, or that keys describe; the vocabulary of keys is known later."""
    assert model.family is not None
    if model.config is not None:
        path = Path(model.config)
        path = path / CONFIG_FILE if path.is_dir() else path
        given = {KEYS[key]: getattr(model, key) for key in FOREIGN_KEYS if key in model.model_fields_set}
        spec = table_spec(read_table(path), str(path), {**given, **model.options})
        _refuse_other_family(model, spec, str(path))
        return spec
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


def foreign_problems(
    config: Config, stages: Sequence[Stage], spec: ModelSpec, ropes: Sequence[RopeSpec], vocab: int
) -> list[Problem]:
    """What a model of transformers cannot do here, of all stages; `vocab` is the tokenizer's."""
    assert spec.foreign is not None
    problems: list[Problem] = []
    if config.engine.name == "jax":
        what = f'is "jax", which trains trivium\'s own decoder alone, and the model is a {spec.foreign.family}'
        problems.append(Problem("engine.name", f'{what}. Write name = "torch".'))
    if config.model.config is not None and spec.vocab < vocab:
        what = f"{config.model.config} has {spec.vocab:,} tokens, and the tokenizer {vocab:,}"
        problems.append(
            Problem("model.vocab", f"{what}. Write model.vocab = {vocab}, or take the model's own tokenizer.")
        )
    positions = spec.foreign.table.get("rope_parameters")
    for number, (stage, rope) in enumerate(zip(stages, ropes, strict=True)):
        try:
            with_rope(spec, rope, where=f"stages[{number}].rope")
        except ConfigError as error:
            problems += error.problems
        if not positions and stage.seq_len > spec.max_seq_len:
            known = f"{spec.foreign.family} has {spec.max_seq_len:,} trained positions"
            problems.append(Problem(f"stages[{number}].seq_len", f"is {stage.seq_len:,}, and {known}. Lower it."))
    return problems


def refuse_empty_freezes(freezes: Sequence[Sequence[str]], spec: ModelSpec) -> None:
    """Some families have norms without parameters, which cannot be frozen, and are nothing that is left to train."""
    assert spec.foreign is not None
    empty, problems = set(spec.foreign.empty_parts), []
    for number, parts in enumerate(parts_of(names, spec) for names in freezes):
        where = f"stages[{number}].freeze"
        if parts & empty:
            what = f"transformers' {spec.foreign.family} has no parameters in {', '.join(sorted(parts & empty))}"
            problems.append(Problem(where, f"{what}. Leave it out."))
        elif parts and parts >= all_parts(spec) - empty:
            what = "freezes the whole model, so that nothing would be trained"
            problems.append(Problem(where, f"{what}. Leave out a part."))
    if problems:
        raise ConfigError(problems)
