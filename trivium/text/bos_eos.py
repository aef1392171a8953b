"""What stands around each document: as asked, else the token that ends it, else the one that begins it."""

from dataclasses import dataclass

from trivium.errors import SourceError
from trivium.text.tokenizer import Role, Tokenizer


@dataclass(frozen=True, slots=True)
class Around:
    """Ids before and after each document."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def added_roles(tokenizer: Tokenizer, add: tuple[Role, ...] | None) -> tuple[Role, ...]:
    """As asked; where nothing is asked, eos or else bos, where there is one."""
    if add is not None:
        return add
    roles: tuple[Role, ...] = ("eos", "bos")
    return next(((role,) for role in roles if tokenizer.special(role) is not None), ())


def around(tokenizer: Tokenizer, add: tuple[Role, ...] | None) -> Around:
    """The ids of what is added; SourceError where the tokenizer has no such token."""
    ids = {role: (_special(tokenizer, role),) for role in added_roles(tokenizer, add)}
    return Around(ids.get("bos", ()), ids.get("eos", ()))


def _special(tokenizer: Tokenizer, role: Role) -> int:
    found = tokenizer.special(role)
    if found is None:
        raise SourceError(f'add = ["{role}"]: the tokenizer has no such token. Write add = [], or another token.')
    return found
