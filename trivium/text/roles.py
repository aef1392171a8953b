"""Which special token has which role: as the config names it, as its folder declares it, or by a well-known name."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, get_args

from trivium.config.keys import nearest
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.errors import SourceError

Role = Literal[
    "eos",
    "bos",
    "user_start",
    "user_end",
    "assistant_start",
    "assistant_end",
    "call_start",  # the assistant calls a tool
    "call_end",
    "result_start",  # what the tool answered
    "result_end",
    "system_start",
    "system_end",
]
ROLES: tuple[Role, ...] = get_args(Role)
Roles = Mapping[Role, int]

# Tried after `<|role|>`, in this order; the names of calls and results are nanochat's.
WELL_KNOWN: Mapping[Role, tuple[str, ...]] = MappingProxyType(
    {
        "bos": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"),
        "eos": ("</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>"),
        "call_start": ("<|python_start|>",),
        "call_end": ("<|python_end|>",),
        "result_start": ("<|output_start|>",),
        "result_end": ("<|output_end|>",),
    }
)


def role_name(role: Role) -> str:
    """`<|role|>`, the name of the token in tokenizers that trivium trains."""
    return f"<|{role}|>"


def named_roles(config: TokenizerConfig) -> dict[Role, str]:
    named = {"bos": config.bos, "eos": config.eos, **dict(config.markers)}
    return {role: name for role in ROLES if (name := named[role]) is not None}


def find_roles(
    config: TokenizerConfig, declared: Mapping[Role, str], id_of: Callable[[str], int | None], special: Iterable[str]
) -> dict[Role, int]:
    """The ids of the tokens with a role; `declared` are the folder's names, `special` those that a typo may mean."""
    named = named_roles(config)
    roles: dict[Role, int] = {}
    for role in ROLES:
        names = [named[role]] if role in named else [*filter(None, [declared.get(role)]), role_name(role)]
        if role not in named:
            names += WELL_KNOWN.get(role, ())
        found = next((number for name in names if (number := id_of(name)) is not None), None)
        if found is not None:
            roles[role] = found
        elif role in named:
            key = role if role in ("bos", "eos") else f"markers.{role}"
            what = f'"{named[role]}" is not one of its tokens'
            raise SourceError(f"tokenizer.{key}: {what}. {nearest(named[role], special)}")
    return roles
