"""A tokenizer -> the tokens that end a text, and those that end an assistant's turn."""

import numpy as np

from trivium.text.chat import render
from trivium.text.roles import Role
from trivium.text.tokenizer import Tokenizer

BETWEEN_TEXTS: tuple[Role, ...] = ("eos", "bos")  # the next text begins where a model writes bos


def text_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """What stands between texts."""
    return frozenset(found for role in BETWEEN_TEXTS if (found := tokenizer.special(role)) is not None)


def turn_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """The special token that the assistant's words end with, by markers or by the chat template; and a text's ends."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
    rendered = render(messages, tokenizer)
    last = int(rendered.tokens[np.flatnonzero(rendered.loss_mask)[-1]])
    is_special = tokenizer.token_bytes(tokenizer.vocab)[last] == 0
    return text_ends(tokenizer) | ({last} if is_special else set())
