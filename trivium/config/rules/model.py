"""Rules about the tables that are there once: run, model, tokenizer, engine, checkpoint, guard."""

from collections.abc import Iterator

from trivium.config.fields import is_path
from trivium.config.keys import Path, listed, look_up, nearest
from trivium.config.problems import show_value
from trivium.config.rules.view import Finding, View
from trivium.config.schema import ANY_FAMILY, SIZES, Model

FORM_KEYS = (
    *("qkv_bias", "norm", "activation", "gated", "window", "layers_pattern", "rotary_dim"),
    *("attention_scale", "attention_softcap", "logit_softcap", "logit_scale", "embedding_scale"),
)
OWN_KEYS = ("depth", "qk_norm", "no_rope_every", *FORM_KEYS)  # a model of transformers has options instead
INIT_KEYS = ("norm_eps", "tied_embeddings", "init_std")  # which weights decide, or have no use for
TOKENIZER_KEYS = {
    "train": ("huggingface",),
    "chat_template": ("huggingface",),
    "pattern": ("tiktoken",),
    "special_tokens": ("tiktoken",),
}


def run_rules(view: View) -> Iterator[Finding]:
    """A run has a name that can be a folder's."""
    name = view.config.run.name
    if name is None:
        if view.absent("run", "name"):
            yield view.problem(("run", "name"), 'is missing. Write name = "my-run" in [run].')
    elif not name.strip():
        yield view.problem(("run", "name"), 'is blank. Write name = "my-run".')
    elif name in (".", "..") or set(name) & set("/\\:\0") or name != name.strip():
        what = f"is {show_value(name)}, which cannot be the name of a folder. Use letters, digits and dashes."
        yield view.problem(("run", "name"), what)


def model_rules(view: View) -> Iterator[Finding]:
    """One way of giving the sizes, and sizes that fit each other."""
    model = view.config.model
    shape = [key for key in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn") if view.given("model", key)]
    ways = [key for key in ("init", "config", "size") if view.given("model", key)] + (["layers"] if shape else [])
    yield from _family_rules(view, model)
    if view.given("model", "depth"):
        yield from _depth_rules(view, model)
    elif not ways and view.absent("model", "size"):
        what = 'has no size. Write size = "125m", or layers and width, or init = "path/to/checkpoint".'
        yield view.problem(("model",), what)
    elif len(ways) > 1:
        given = [key for key in ("init", "config", "size", *shape) if view.given("model", key)]
        what = f"gives its size in more than one way: {', '.join(given)}. Keep one: init, size, or layers and width."
        yield view.problem(("model",), what)
    elif shape:
        yield from _shape_rules(view, model)
    if model.size is not None and model.size not in SIZES:
        what = f"{show_value(model.size)} is not known. {nearest(model.size, SIZES)}"
        yield view.problem(("model", "size"), what)
    yield from _form_rules(view, model)
    for key in ("init_step", "init_optimizer"):
        if view.given("model", key) and view.absent("model", "init"):
            what = 'is given without init. Write init = "runs/base" too, or leave it out.'
            yield view.problem(("model", key), what)
    if model.init_optimizer and view.stages and view.stages[0].reset_optimizer:
        what = "is true, but the first stage resets the optimizer at once. Leave one of the two out."
        yield view.problem(("model", "init_optimizer"), what)


def function_rules(view: View) -> Iterator[Finding]:
    """A family with a colon is the path of a function; what counts the decoder's weights does not go with it."""
    family = view.config.model.family
    if family is None or not view.config.model.is_function:
        return
    if not is_path(family):
        what = f'is {show_value(family)}. It must be the path of a function, such as "my_package.models:make".'
        yield view.problem(("model", "family"), what)
    if view.given("model", "depth"):
        what = "is given with family, and its rules are for the decoder. Write layers and width instead."
        yield view.problem(("model", "depth"), what)
    for number, stage in enumerate(view.stages):
        if stage.tokens is not None and stage.tokens.per_parameter is not None:
            what = "counts the decoder's matrices, and model.family makes another model. Write a number of tokens."
            yield view.problem(view.stage_path(number, "tokens"), what)
        if stage.rope is not None:
            what = "is given, but a model of family has positions of its own. Leave it out."
            yield view.problem(view.stage_path(number, "rope"), what)


def _family_rules(view: View, model: Model) -> Iterator[Finding]:
    """Keys of the one kind of model beside the other; what only trivium's own decoder can do."""
    if not model.is_foreign:
        for key in ("config", "options"):
            if view.given("model", key):
                what = 'is for a model of transformers. Write family = "transformers" too, or leave it out.'
                yield view.problem(("model", key), what)
        return
    named = show_value(model.family)
    if model.family == ANY_FAMILY and view.absent("model", "init") and view.absent("model", "config"):
        what = f'is {named}, which takes the family from init or config. Write one of them, or family = "olmo3".'
        yield view.problem(("model", "family"), what)
    for key in OWN_KEYS:
        if view.given("model", key):
            what = f"is given with family = {named}, and is for trivium's own decoder. Leave it out, or write options."
            yield view.problem(("model", key), what)
    engine = view.config.engine
    if engine.name == "jax":
        what = f'is {named}, and JAX trains trivium\'s own decoder alone. Leave it out, or write engine.name = "torch".'
        yield view.problem(("model", "family"), what)


def _form_rules(view: View, model: Model) -> Iterator[Finding]:
    """Windows and the layers that have them come together; weights that are given decide what layers are."""
    if model.init is not None:
        others = () if model.is_foreign else OWN_KEYS[1:]  # which are refused there already
        for key in (key for key in (*others, *INIT_KEYS) if view.given("model", key)):
            what = "is given with init, whose weights decide it. Leave it out."
            yield view.problem(("model", key), what)
        return
    if model.layers_pattern is not None and view.absent("model", "window"):
        what = "is given without window. Write window = 4096 too, or leave it out."
        yield view.problem(("model", "layers_pattern"), what)
    elif model.layers_pattern is not None and "S" not in model.layers_pattern:
        what = (
            f"is {show_value(model.layers_pattern)}, in which no layer slides. Write an S in it, or leave out window."
        )
        yield view.problem(("model", "layers_pattern"), what)
    head_dim = _head_dim(model)
    if model.rotary_dim is not None and head_dim is not None and model.rotary_dim > head_dim:
        what = f"is {model.rotary_dim}, over the {head_dim} channels of a head. Lower it."
        yield view.problem(("model", "rotary_dim"), what)


def _head_dim(model: Model) -> int | None:
    """Channels of a head, where the sizes are known."""
    size = SIZES.get(model.size or "")
    width, heads = (size.width, size.heads) if size is not None else (model.width, model.heads)
    if model.head_dim is not None or width is None:
        return model.head_dim
    return width // (heads or max(1, width // 64))


def _depth_rules(view: View, model: Model) -> Iterator[Finding]:
    """The dial decides the number of layers, and the length of one stage at most."""
    for key in ("init", "size"):
        if view.given("model", key):
            yield view.problem(("model", key), "is given with depth, which decides the size. Leave one of the two out.")
    if model.layers is not None and model.layers != model.depth:
        what = f"is {model.layers}, and depth = {model.depth} is the number of layers. Leave one of the two out."
        yield view.problem(("model", "layers"), what)
    if model.depth is not None:
        yield from _shape_rules(view, model.of_depth)
    lacking = [f"stages[{number}]" for number in range(len(view.stages)) if not _has_length(view, number)]
    if len(lacking) > 1:
        what = (
            f"gives one stage its length, and {listed(lacking)} have none. Write steps, tokens or epochs in the others."
        )
        yield view.problem(("model", "depth"), what)


def _has_length(view: View, number: int) -> bool:
    return any(view.given("stages", number, key) for key in ("steps", "tokens", "epochs"))


def _shape_rules(view: View, model: Model) -> Iterator[Finding]:
    for key, example in (("layers", 12), ("width", 768)):
        if view.absent("model", key) and view.absent("model", "depth"):
            yield view.problem(("model", key), f"is missing. Write {key} = {example}, or a size by name.")
    if model.width is None or (model.heads is None and view.given("model", "heads")):
        return
    heads = model.heads if model.heads is not None else max(1, model.width // 64)
    path: Path = ("model", "heads" if view.given("model", "heads") else "width")
    if model.head_dim is not None:
        if model.head_dim % 2:
            what = f"is {model.head_dim}: rotary positions take its channels in pairs. Write {model.head_dim + 1}."
            yield view.problem(("model", "head_dim"), what)
    elif model.width % heads or model.width // heads % 2:
        what = (
            f"{model.width} of width over {heads} heads is not an even whole number for each. "
            "Change width or heads, for example width = 768 and heads = 12."
        )
        yield view.problem(path, what)
    if model.kv_heads is not None and heads % model.kv_heads:
        fitting = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
        what = f"is {model.kv_heads}, which does not divide the {heads} heads. Use one of {fitting}."
        yield view.problem(("model", "kv_heads"), what)


def tokenizer_rules(view: View) -> Iterator[Finding]:
    """A tokenizer that reads a file names it, and has the keys of its kind."""
    tokenizer = view.config.tokenizer
    if tokenizer is None:
        return
    kind = look_up(view.raw, ("tokenizer", "kind"), tokenizer.kind)
    if kind != tokenizer.kind:
        return  # no kind at all, which was reported already
    for key in ("path", "train", "bos", "eos", "markers", "chat_template", "pattern", "special_tokens", "fim_tokens"):
        if view.given("tokenizer", key) and kind not in TOKENIZER_KEYS.get(key, ("huggingface", "tiktoken")):
            what = f'is given with kind = "{kind}", which reads none. Leave it out.'
            yield view.problem(("tokenizer", key), what)
    if kind != "bytes" and view.absent("tokenizer", "path"):
        what = 'is missing. Write path = "tokenizer.json", or kind = "bytes".'
        yield view.problem(("tokenizer", "path"), what)
    path = tokenizer.path or ""
    if tokenizer.train is not None and kind == "huggingface" and path.endswith(".json"):
        folder = path.rpartition("/")[0] or "tokenizer"
        what = f'is "{path}", but what train writes is a folder. Write path = "{folder}".'
        yield view.problem(("tokenizer", "path"), what)


def cadence_rules(view: View) -> Iterator[Finding]:
    """Checkpoints come every n steps or every n minutes, not both."""
    every = view.config.checkpoint.every
    if every is not None and every.steps is not None and every.minutes is not None:
        what = "has steps and minutes, but needs one of them. Write every = 1000 or every = { minutes = 30 }."
        yield view.problem(("checkpoint", "every"), what)
    if every is not None and look_up(view.raw, ("checkpoint", "every")) == {}:
        what = "is empty. Write every = 1000 or every = { minutes = 30 }."
        yield view.problem(("checkpoint", "every"), what)


def guard_rules(view: View) -> Iterator[Finding]:
    """Steps to skip are spans that do not overlap."""
    before = 0
    for number, (first, end) in enumerate(view.config.guard.skip_steps):
        path = ("guard", "skip_steps", number)
        if end <= first:
            yield view.problem(path, f"is [{first}, {end}], which holds no step. Write [{first}, {first + 1}].")
        elif first < before:
            what = f"starts at {first:,}, before the one ahead of it ends, at {before:,}. Write one for both."
            yield view.problem(path, what)
        before = max(before, end)


def engine_rules(view: View) -> Iterator[Finding]:
    """FSDP's choices and float8 are torch's, float8 for rows that the hardware can multiply; a profile has steps."""
    engine = view.config.engine
    if engine.name == "jax" and engine.reshard_after_forward is not None:
        what = "is for torch's FSDP: in JAX the compiler decides when gathered weights are let go. Leave it out."
        yield view.problem(("engine", "reshard_after_forward"), what)
    if engine.float8 is not None and engine.name == "jax":
        what = 'is given, but JAX has no float8 here. Leave it out, or write name = "torch".'
        yield view.problem(("engine", "float8"), what)
    elif engine.float8 is not None and engine.parallel.tensor > 1:
        what = f"is given, but tensor = {engine.parallel.tensor} splits matrices, which float8 does not"
        yield view.problem(("engine", "float8"), f"{what}. Leave one of them out.")
    elif engine.float8 is not None:
        for number, stage in enumerate(view.stages):
            if stage.seq_len % 16:
                what = f"is {stage.seq_len:,}, which 16 does not divide, as engine.float8 needs it"
                fits = stage.seq_len // 16 * 16 or 16
                yield view.problem(("stages", number, "seq_len"), f"{what}. Write {fits:,} or {fits + 16:,}.")
    if engine.profile is not None and engine.profile.steps[1] <= engine.profile.steps[0]:
        first, end = engine.profile.steps
        what = f"is [{first}, {end}], which holds no step. Write [{first}, {first + 3}]."
        yield view.problem(("engine", "profile", "steps"), what)
