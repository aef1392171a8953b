"""Key paths: `("stages", 1, "lr", "scale")` <-> `stages[1].lr.scale`, and the model behind each key."""

import json
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trivium.config.schema import Config
from trivium.config.sources import KINDS, kind_of

Path = tuple[str | int, ...]

# Keys that had another name: where an old one was, and what it is called now.
RENAMED = {
    "tokenizer.special": "special_tokens",
    "tokenizer.template": "chat_template",
    "optimizer.clip": "grad_clip",
    "engine.micro_batch": "micro_batch_size",
    "engine.recompute_activations": "recompute",
    "engine.activation_checkpointing": "recompute",
    "checkpoint.milestones": "keep_every",
    "guard.most_left_out": "max_consecutive_skips",
    "evaluate.answer_tokens": "max_new_tokens",
    "track.sinks": "trackers",
    "defaults.documents": "document_mask",
    "stages.documents": "document_mask",
    "sources.shuffle_documents": "shuffle_buffer",
}

# Keys that only other tables of their kind have, and why.
ELSEWHERE = {
    "sources.fim": "needs text, which is cut before it is tokenised. Write it in a source of kind text, huggingface or "
    "stream, or leave it out.",
    "sources.score": "needs files that hold a score beside each text, and text that is prepared. Write it in a source "
    "of kind text or huggingface, or leave it out.",
}

MISSING = object()
BARE = re.compile(r"[A-Za-z0-9_-]+")


def look_up(raw: object, path: Path, default: Any = MISSING) -> Any:
    """The value at a path of the raw tables, or the default."""
    for part in path:
        if not isinstance(raw, Mapping | list):
            return default
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return default
    return raw


def show_path(path: Path) -> str:
    """`("stages", 1, "lr")` -> `stages[1].lr`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{show_key(part)}" if text else show_key(part)
    return text


def flat_keys(value: Any, path: str = "") -> dict[str, Any]:
    """`{"run": {"seed": 1}}` -> `{"run.seed": 1}`."""
    if isinstance(value, Mapping):
        pairs = [(f"{path}.{key}" if path else str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and value and all(isinstance(inner, Mapping) for inner in value):
        pairs = [(f"{path}[{number}]", inner) for number, inner in enumerate(value)]
    else:
        return {path: value}
    return {key: leaf for inner_path, inner in pairs for key, leaf in flat_keys(inner, inner_path).items()}


def show_key(key: str) -> str:
    """A key as TOML writes it: in quotes where it is not letters, digits and dashes."""
    return key if BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def listed(words: Sequence[str], last: str = "and") -> str:
    """`web, code and chat`."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def nearest(word: str, known: Iterable[str]) -> str:
    """`Did you mean "mixture"?`, or all that could be written."""
    names = list(dict.fromkeys(known))
    close = get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f'Did you mean "{close[0]}"?'
    shown = listed([json.dumps(name, ensure_ascii=False) for name in names], "or")
    return f"Write {'one of ' if len(names) > 1 else ''}{shown}." if names else "There is none."


def unknown_key(path: Path, known: Iterable[str]) -> str:
    """What is wrong with a key that its table does not have; an old name leads to the new one."""
    # Without the stage's number or the source's name: stages.0.documents -> stages.documents.
    place = (path[0], *path[2:]) if path[0] in ("stages", "sources") else path
    written = ".".join(map(str, place))
    if written in ELSEWHERE:
        return ELSEWHERE[written]
    now = RENAMED.get(written)
    return f"unknown key. {nearest(now or str(path[-1]), known)}"


@dataclass(frozen=True, slots=True)
class Key:
    """What the schema has for a key path: its field, and the tables or elements below it."""

    field: FieldInfo | None
    annotation: Any
    is_element: bool = False

    def below(self, part: str | int) -> "Key":
        """The key one step further down; field None where the schema knows no such key."""
        for model in self._models():
            for name, field in model.model_fields.items():
                if part == (field.alias or name):
                    return Key(field, field.annotation)
        for candidate in _alternatives(self.annotation):
            arguments = get_args(candidate)
            if arguments and issubclass(get_origin(candidate) or object, Mapping | tuple):
                element = arguments[-1] if arguments[-1] is not ... else arguments[0]
                return Key(self.field, element, is_element=True)
        return Key(None, None)

    def of_kind(self, kind: str) -> "Key":
        """Of the kinds of source, the one with this name."""
        return Key(self.field, next(model for model in self._models() if model.model_fields["kind"].default == kind))

    def names(self) -> list[str]:
        """The keys that may be written in this table."""
        return [field.alias or name for model in self._models() for name, field in model.model_fields.items()]

    def _models(self) -> list[type[BaseModel]]:
        found = _alternatives(self.annotation)
        return [model for model in found if isinstance(model, type) and issubclass(model, BaseModel)]


def key_at(path: Path, raw: object) -> Key:
    """The schema's view of a path; `raw` tells which kind a source is."""
    key = Key(None, Config)
    for depth, part in enumerate(path):
        key = key.below(part)
        if depth == 1 and path[0] == "sources" and (kind := kind_of(look_up(raw, path[:2]))) in KINDS:
            key = key.of_kind(kind)
    return key


def _alternatives(annotation: Any) -> list[Any]:
    """A union's members, without `Annotated` around them."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [inner for argument in get_args(annotation) for inner in _alternatives(argument)]
    return [annotation]
