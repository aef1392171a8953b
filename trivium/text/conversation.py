"""What people write as conversations -> messages of parts, in one form; and what is wrong with the others.

A message is a system's, a user's or an assistant's. An assistant's has parts: text, calls of a tool, and the tool's
results, which are not its own words. A tool's message becomes a part of the assistant's message that called it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from trivium.errors import TriviumError

MessagePartKind = Literal["text", "call", "result"]
Speaker = Literal["system", "user", "assistant"]
PART_KINDS: Mapping[str, MessagePartKind] = {
    "text": "text",
    "call": "call",
    "result": "result",
    "python": "call",  # nanochat's names
    "python_output": "result",
}


class MalformedConversation(TriviumError):  # noqa: N818  it is counted, not only raised
    """A conversation that cannot be rendered; its reason is the message."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Text of one kind in a message: words, a call of a tool, or its result."""

    kind: MessagePartKind
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """The parts of one message, and who wrote it."""

    speaker: Speaker
    parts: tuple[MessagePart, ...]

    @property
    def text(self) -> str:
        """All its parts, joined."""
        return "".join(part.text for part in self.parts)


def raw_messages(conversation: object) -> Sequence[Mapping[str, Any]]:
    """The messages of `{"messages": [...]}`, or a list of them, as they were written."""
    found = conversation.get("messages") if isinstance(conversation, Mapping) else conversation
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise MalformedConversation("has no messages")
    for place, message in enumerate(found):
        if not isinstance(message, Mapping):
            raise MalformedConversation(f"message {place} is not a table")
    return found


def read_messages(conversation: object) -> list[Message]:
    """The messages in one form: at most one system's, then users' and assistants' in alternation."""
    messages: list[Message] = []
    for place, raw in enumerate(raw_messages(conversation)):
        role, parts = raw.get("role"), tuple(_parts(raw, place))
        last = messages[-1].speaker if messages else None
        if role == "tool":
            if last != "assistant":
                raise MalformedConversation(f"message {place} is a tool's, but no assistant has called it")
            results = tuple(MessagePart("result", part.text) for part in parts)
            messages[-1] = Message("assistant", messages[-1].parts + results)
        elif role == "assistant" and last == "assistant" and messages[-1].parts[-1].kind == "result":
            messages[-1] = Message("assistant", messages[-1].parts + parts)
        else:
            messages.append(Message(_speaker(role, last, place), parts))
    if messages[-1].speaker == "system":
        raise MalformedConversation("has a system's message alone")
    return messages


def _speaker(role: object, last: Speaker | None, place: int) -> Speaker:
    """Who wrote message `place`; refused where this role may not follow `last`."""
    if role == "system" and last is None:
        return "system"
    if role == "user" and last != "user":
        return "user"
    if role == "assistant" and last == "user":
        return "assistant"
    if role not in ("system", "user", "assistant"):
        raise MalformedConversation(f"message {place} has the role {json.dumps(role, default=str)}")
    raise MalformedConversation(f"message {place} is the {role}'s, after {'the ' + last if last else 'nobody'}")


def _parts(raw: Mapping[str, Any], place: int) -> Iterator[MessagePart]:
    content, calls = raw.get("content"), raw.get("tool_calls") or ()
    found = [*_content_parts(content, place)] if content is not None or not calls else []
    found += [MessagePart("call", call_text(call, place)) for call in calls]
    parts = [part for part in found if part.text]
    if not parts:
        raise MalformedConversation(f"message {place} is empty")
    if raw.get("role") != "assistant" and any(part.kind != "text" for part in parts):
        raise MalformedConversation(f"message {place} has a call or a result, but is not the assistant's")
    yield from parts


def _content_parts(content: object, place: int) -> Iterator[MessagePart]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list | tuple):
        raise MalformedConversation(f"message {place} has content that is not text")
    for part in parts:
        kind = PART_KINDS.get(str(part.get("type"))) if isinstance(part, Mapping) else None
        if kind is None or not isinstance(part.get("text"), str):
            raise MalformedConversation(f"message {place} has content that is not text")
        yield MessagePart(kind, part["text"])


def call_text(call: object, place: int) -> str:
    """A call in OpenAI's form, in one line: `{"name": "add", "arguments": {"a": 1}}`."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise MalformedConversation(f"message {place} has a tool call without a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with suppress(ValueError):  # arguments that are not JSON stay text
            arguments = json.loads(arguments)
    return json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
