"""Conversations -> tokens, and which of them count in the loss.

    bos, then for each message its start marker, its words, its end marker

The assistant's words, its calls with their markers, and its end marker count in the loss: all that a model must write
by itself. Where the tokenizer has no markers but its folder a chat template, the template writes the conversation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.config.keys import listed
from trivium.errors import SourceError
from trivium.text.chat_template import ChatTemplate, prompt_by_template, render_by_template
from trivium.text.conversation import MalformedConversation, Message, MessagePart, read_messages
from trivium.text.fast_bpe import FastTokenizer
from trivium.text.file_tokenizer import FileTokenizer
from trivium.text.roles import Role
from trivium.text.tokenizer import Tokenizer

__all__ = ["MalformedConversation", "RenderedConversation", "is_templated", "render", "render_prompt"]

REQUIRED_MARKERS: tuple[Role, ...] = ("user_start", "user_end", "assistant_start", "assistant_end")


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """A conversation's tokens, and for each whether it counts in the loss."""

    tokens: NDArray[np.uint32]
    loss_mask: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ChatSegment:
    """A marker, or a text between two markers."""

    content: str  # the marker's role, or the text
    is_marker: bool
    has_loss: bool


def render(conversation: Mapping[str, Any] | Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> RenderedConversation:
    """The tokens of a conversation, and which of them count in the loss."""
    messages = read_messages(conversation)
    if all(message.speaker != "assistant" for message in messages):
        raise MalformedConversation("has no assistant's message")
    templated = _templated(tokenizer)
    if templated is not None:
        return RenderedConversation(*render_by_template(conversation, *templated))
    return _encode(list(_segments(messages, tokenizer)), tokenizer)


def render_prompt(
    conversation: Mapping[str, Any] | Sequence[Mapping[str, Any]], tokenizer: Tokenizer
) -> NDArray[np.uint32]:
    """The tokens up to where the assistant begins to answer the last message, a user's."""
    messages = read_messages(conversation)
    if messages[-1].speaker != "user":
        raise MalformedConversation("ends with the assistant's message, so there is nothing to answer")
    templated = _templated(tokenizer)
    if templated is not None:
        return prompt_by_template(conversation, *templated)
    segments = [*_segments(messages, tokenizer), ChatSegment("assistant_start", is_marker=True, has_loss=False)]
    return _encode(segments, tokenizer).tokens


def is_templated(tokenizer: Tokenizer) -> bool:
    """Whether a chat template writes this tokenizer's conversations, and not its markers."""
    return _templated(tokenizer) is not None


def _templated(tokenizer: Tokenizer) -> tuple[ChatTemplate, FileTokenizer] | None:
    """The template, where the config names one or the tokenizer has no markers."""
    missing = [role for role in REQUIRED_MARKERS if tokenizer.special(role) is None]
    file = tokenizer.slow if isinstance(tokenizer, FastTokenizer) else tokenizer
    if isinstance(file, FileTokenizer) and file.template is not None and (missing or file.template.from_config):
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


def _segments(messages: Sequence[Message], tokenizer: Tokenizer) -> Iterator[ChatSegment]:
    if tokenizer.special("bos") is not None:
        yield ChatSegment("bos", is_marker=True, has_loss=False)
    for message in _merge_system(messages, tokenizer):
        is_assistant = message.speaker == "assistant"
        yield ChatSegment(f"{message.speaker}_start", is_marker=True, has_loss=False)
        for part in message.parts:
            has_loss = is_assistant and part.kind != "result"
            if part.kind != "text":
                yield ChatSegment(f"{part.kind}_start", is_marker=True, has_loss=has_loss)
            yield ChatSegment(part.text, is_marker=False, has_loss=has_loss)
            if part.kind != "text":
                yield ChatSegment(f"{part.kind}_end", is_marker=True, has_loss=has_loss)
        yield ChatSegment(f"{message.speaker}_end", is_marker=True, has_loss=is_assistant)


def _merge_system(messages: Sequence[Message], tokenizer: Tokenizer) -> Sequence[Message]:
    """Put the system's message before the first user's words where the tokenizer has no markers for it."""
    has_markers = None not in (tokenizer.special("system_start"), tokenizer.special("system_end"))
    if messages[0].speaker != "system" or has_markers:
        return messages
    system, user, *others = messages
    return [Message("user", (MessagePart("text", f"{system.text}\n\n{user.text}"),)), *others]


def _encode(segments: Sequence[ChatSegment], tokenizer: Tokenizer) -> RenderedConversation:
    texts = iter(tokenizer.encode([each.content for each in segments if not each.is_marker]))
    tokens = [_marker(each.content, tokenizer) if each.is_marker else next(texts) for each in segments]
    loss_mask = np.repeat([each.has_loss for each in segments], [len(each) for each in tokens])
    return RenderedConversation(np.concatenate(tokens).astype(np.uint32), loss_mask.astype(np.uint8))


def _marker(role: str, tokenizer: Tokenizer) -> NDArray[np.uint32]:
    number = tokenizer.special(role)  # type: ignore[arg-type]
    if number is None:
        raise _no_markers([role])  # type: ignore[list-item]
    return np.array([number], np.uint32)
