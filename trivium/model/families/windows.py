"""Which layers of a config.json slide, and which have no rotary positions <-> ours."""

import json
from collections.abc import Iterator
from typing import Any

from trivium.model.families.family import Family
from trivium.model.families.rope import FULL, SLIDING
from trivium.model.spec import ModelSpec, RopeSpec

NO_WINDOW = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}


def layer_misfits(config: dict[str, Any], family: Family) -> Iterator[str]:
    """What of a config's layers no model can have."""
    marks = config.get("no_rope_layers")
    if not (marks is None or (isinstance(marks, list) and all(mark in (0, 1) for mark in marks))):
        yield f"no_rope_layers is {json.dumps(marks)}. It must be a list of 0 and 1."
        return
    if family.windows != "types":
        return
    types, layers = config.get("layer_types"), config["num_hidden_layers"]
    known = isinstance(types, list) and len(types) == layers and all(each in (FULL, SLIDING) for each in types)
    if types is not None and not known:
        yield f'layer_types is {json.dumps(types)}. It must be "{FULL}" or "{SLIDING}" for each of {layers} layers.'
    elif any(_types(config, family)) and _window(config) is None:
        yield "layer_types has sliding layers, but there is no sliding_window. Write it."


def read_windows(config: dict[str, Any], family: Family) -> tuple[int | None, tuple[int, ...]]:
    """The window, and the layers that slide."""
    window = _window(config)
    if family.windows == "none" or window is None:
        return None, ()
    layers = range(config["num_hidden_layers"])
    slides = [True] * len(layers) if family.windows == "all" else _types(config, family)
    sliding = tuple(layer for layer in layers if slides[layer])
    return (window, sliding) if sliding else (None, ())


def written_windows(spec: ModelSpec, rope: RopeSpec, family: Family) -> dict[str, Any]:
    """The keys of a config.json; none where a family without windows has none."""
    keys: dict[str, Any] = {}
    if family.drops_rope:
        keys = {"no_rope_layers": [int(layer not in rope.dropped) for layer in range(spec.layers)], **NO_WINDOW}
    if family.windows == "all":
        return keys | {"sliding_window": spec.window if spec.sliding else None}
    always = family.windows == "types" and "use_sliding_window" not in family.defaults
    if not (always or spec.sliding):
        return keys
    types = [SLIDING if layer in spec.sliding else FULL for layer in range(spec.layers)]
    keys |= {"sliding_window": spec.window, "layer_types": types}
    return keys if always else keys | {"use_sliding_window": True}


def read_dropped(config: dict[str, Any], family: Family) -> tuple[int, ...]:
    """The layers of a SmolLM3 that have no rotary positions: its list has a 0 for each, or they are every nth."""
    if not family.drops_rope:
        return ()
    layers = config.get("no_rope_layers")
    if layers:
        return tuple(number for number, rotates in enumerate(layers) if not rotates)
    every = config.get("no_rope_layer_interval") or 4
    return tuple(range(every - 1, config["num_hidden_layers"], every))


def _window(config: dict[str, Any]) -> int | None:
    window: int | None = config.get("sliding_window")
    return window if config.get("use_sliding_window", True) else None


def _types(config: dict[str, Any], family: Family) -> list[bool]:
    """Of each layer whether it slides, as marked, or as the family has it where nothing is marked."""
    layers = range(config["num_hidden_layers"])
    if config.get("layer_types") is not None:
        return [each == SLIDING for each in config["layer_types"]]
    match family.name:
        case "olmo3":
            return [(layer + 1) % 4 != 0 for layer in layers]
        case "gemma2":
            return [layer % 2 == 0 for layer in layers]
        case "gemma3_text":
            return [(layer + 1) % config.get("sliding_window_pattern", 6) != 0 for layer in layers]
        case "smollm3":
            return [_window(config) is not None and layer in read_dropped(config, family) for layer in layers]
    return [_window(config) is not None and layer >= config["max_window_layers"] for layer in layers]
