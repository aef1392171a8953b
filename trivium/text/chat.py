"""Conversations -> tokens, and which of them the assistant said.

    bos, then for each message its start marker, its words, its end marker

Learnt are the assistant's words, its calls with their markers, and its end marker: all that a model must write by
itself. Where the tokenizer has no markers but its folder a chat template, the template writes the conversation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.config.keys import listed
from trivium.errors import SourceError
from trivium.text.chat_template import ChatTemplate, prompt_by_template, render_by_template
from trivium.text.conversation import MalformedConversation, Message, Part, read_messages
from trivium.text.fast_bpe import FastTokenizer
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.roles import Role
from trivium.text.tokenizer import Tokenizer

__all__ = ["MalformedConversation", "Rendered", "is_templated", "render", "render_prompt"]

NEEDED: tuple[Role, ...] = ("user_start", "user_end", "assistant_start", "assistant_end")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation's tokens, and for each whether the assistant said it."""

    tokens: NDArray[np.uint32]
    loss_mask: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """A marker by its role, or a text."""

    what: str
    is_marker: bool
    has_loss: bool


def render(conversation: Mapping[str, Any] | Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> Rendered:
    """The tokens of a conversation, and which of them are learnt."""
    messages = read_messages(conversation)
    if all(message.speaker != "assistant" for message in messages):
        raise MalformedConversation("has no assistant's turn")
    templated = _templated(tokenizer)
    if templated is not None:
        return Rendered(*render_by_template(conversation, *templated))
    return _joined(list(_pieces(messages, tokenizer)), tokenizer)


def render_prompt(
    conversation: Mapping[str, Any] | Sequence[Mapping[str, Any]], tokenizer: Tokenizer
) -> NDArray[np.uint32]:
    """The tokens up to where the assistant begins to answer the last message, a user's."""
    messages = read_messages(conversation)
    if messages[-1].speaker != "user":
        raise MalformedConversation("ends with the assistant's turn: there is nothing to answer")
    templated = _templated(tokenizer)
    if templated is not None:
        return prompt_by_template(conversation, *templated)
    pieces = [*_pieces(messages, tokenizer), Piece("assistant_start", is_marker=True, has_loss=False)]
    return _joined(pieces, tokenizer).tokens


def is_templated(tokenizer: Tokenizer) -> bool:
    """Whether a chat template writes this tokenizer's conversations, and not its markers."""
    return _templated(tokenizer) is not None


def _templated(tokenizer: Tokenizer) -> tuple[ChatTemplate, FileTokenizer] | None:
    """The template where it is what counts: it was asked for, or there are no markers."""
    missing = [role for role in NEEDED if tokenizer.special(role) is None]
    file = tokenizer.slow if isinstance(tokenizer, FastTokenizer) else tokenizer
    if isinstance(file, FileTokenizer) and file.template is not None and (missing or file.template.is_asked):
        return file.template, file
    if missing:
        raise _no_markers(missing)
    return None


def _no_markers(missing: Sequence[Role]) -> SourceError:
    return SourceError(
        f"tokenizer: has no token for {listed(missing)}, and no chat template: conversations cannot be written. "
        f'Write markers = {{ {missing[0]} = "<|{missing[0]}|>" }} with tokens that it has, '
        'or chat_template = "chat.jinja".'
    )


def _pieces(messages: Sequence[Message], tokenizer: Tokenizer) -> Iterator[Piece]:
    if tokenizer.special("bos") is not None:
        yield Piece("bos", is_marker=True, has_loss=False)
    for message in _without_system(messages, tokenizer):
        speaks = message.speaker == "assistant"
        yield Piece(f"{message.speaker}_start", is_marker=True, has_loss=False)
        for part in message.parts:
            has_loss = speaks and part.kind != "result"
            if part.kind != "text":
                yield Piece(f"{part.kind}_start", is_marker=True, has_loss=has_loss)
            yield Piece(part.text, is_marker=False, has_loss=has_loss)
            if part.kind != "text":
                yield Piece(f"{part.kind}_end", is_marker=True, has_loss=has_loss)
        yield Piece(f"{message.speaker}_end", is_marker=True, has_loss=speaks)


def _without_system(messages: Sequence[Message], tokenizer: Tokenizer) -> Sequence[Message]:
    """A system's message goes before the first user's words, where there are no markers for it."""
    has_markers = None not in (tokenizer.special("system_start"), tokenizer.special("system_end"))
    if messages[0].speaker != "system" or has_markers:
        return messages
    system, user, *others = messages
    return [Message("user", (Part("text", f"{system.text}\n\n{user.text}"),)), *others]


def _joined(pieces: Sequence[Piece], tokenizer: Tokenizer) -> Rendered:
    texts = iter(tokenizer.encode([piece.what for piece in pieces if not piece.is_marker]))
    tokens = [_marker(piece.what, tokenizer) if piece.is_marker else next(texts) for piece in pieces]
    loss_mask = np.repeat([piece.has_loss for piece in pieces], [len(each) for each in tokens])
    return Rendered(np.concatenate(tokens).astype(np.uint32), loss_mask.astype(np.uint8))


def _marker(role: str, tokenizer: Tokenizer) -> NDArray[np.uint32]:
    number = tokenizer.special(role)  # type: ignore[arg-type]
    if number is None:
        raise _no_markers([role])  # type: ignore[list-item]
    return np.array([number], np.uint32)
