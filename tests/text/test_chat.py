"""Conversations by markers: what is written, what is learnt, what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tokenizers import byte_level, file_tokenizer, opened, piece_level, write_ranks
from trivium.errors import SourceError
from trivium.text.chat import MalformedConversation, RenderedConversation, render, render_prompt
from trivium.text.roles import ROLES
from trivium.text.tokenizer import ByteTokenizer, Tokenizer

BYTES = ByteTokenizer()
NAMES = {256 + place: f"<{role}>" for place, role in enumerate(ROLES)}


def say(role: str, content: Any, **others: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **others}


def shown(rendered: RenderedConversation) -> str:
    """The tokens, with what is learnt in capitals and markers in angle brackets."""
    names = [NAMES.get(token) or chr(token) for token in rendered.tokens.tolist()]
    marks = zip(names, rendered.loss_mask.tolist(), strict=True)
    return "".join(name.upper() if learnt else name for name, learnt in marks)


def chat(*messages: dict[str, Any]) -> str:
    return shown(render({"messages": list(messages)}, BYTES))


def test_the_assistants_words_and_end_are_learnt() -> None:
    assert chat(say("user", "hi"), say("assistant", "ho"), say("user", "so"), say("assistant", "no")) == (
        "<bos><user_start>hi<user_end><assistant_start>HO<ASSISTANT_END>"
        "<user_start>so<user_end><assistant_start>NO<ASSISTANT_END>"
    )


def test_calls_are_learnt_and_results_are_not() -> None:
    parts = [
        {"type": "text", "text": "so "},
        {"type": "call", "text": "1+1"},
        {"type": "result", "text": "2"},
        {"type": "text", "text": "two"},
    ]
    expected = (
        "<bos><user_start>add<user_end><assistant_start>SO <CALL_START>1+1<CALL_END>"
        "<result_start>2<result_end>TWO<ASSISTANT_END>"
    )
    assert chat(say("user", "add"), say("assistant", parts)) == expected
    names = {"call": "python", "result": "python_output"}
    theirs = [{**part, "type": names.get(part["type"], part["type"])} for part in parts]
    assert chat(say("user", "add"), say("assistant", theirs)) == expected


def test_tools_messages_are_results_in_the_assistants_turn() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    messages = [say("user", "go"), say("assistant", None, tool_calls=[call]), say("tool", "2"), say("assistant", "ok")]
    assert chat(*messages) == (
        "<bos><user_start>go<user_end><assistant_start>"
        '<CALL_START>{"NAME": "ADD", "ARGUMENTS": {"A": 1}}<CALL_END><result_start>2<result_end>OK<ASSISTANT_END>'
    )


def test_a_systems_message_goes_before_the_first_users_words(tmp_path: Path) -> None:
    messages = [say("system", "be"), say("user", "hi"), say("assistant", "ho")]
    assert chat(*messages) == "<bos><user_start>be\n\nhi<user_end><assistant_start>HO<ASSISTANT_END>"
    tokenizer = file_tokenizer(tmp_path / "tokenizer.json", byte_level())
    rendered = render({"messages": messages}, tokenizer)
    assert tokenizer.decode(rendered.tokens.tolist()) == (
        "<|bos|><|system_start|>be<|system_end|><|user_start|>hi<|user_end|><|assistant_start|>ho<|assistant_end|>"
    )


def test_a_marker_in_the_words_is_words() -> None:
    rendered = render([say("user", "<|assistant_start|>"), say("assistant", "<|user_end|>")], BYTES)
    assert (rendered.tokens >= 256).sum() == 5


def test_the_prompt_is_how_the_conversation_begins() -> None:
    messages = [say("system", "be"), say("user", "hi"), say("assistant", "ho")]
    prompt = render_prompt(messages[:2], BYTES)
    whole = render(messages, BYTES)
    assert prompt.tolist() == whole.tokens[: len(prompt)].tolist()
    assert prompt[-1] == BYTES.special("assistant_start")
    assert [each.dtype.name for each in (whole.tokens, whole.loss_mask, prompt)] == ["uint32", "uint8", "uint32"]
    with pytest.raises(
        MalformedConversation, match=r"^ends with the assistant's message, so there is nothing to answer$"
    ):
        render_prompt(messages, BYTES)


@pytest.mark.parametrize(
    ("conversation", "reason"),
    [
        ({}, "has no messages"),
        ({"messages": []}, "has no messages"),
        ({"messages": "hi"}, "has no messages"),
        (["hi"], "message 0 is not a table"),
        ([say("user", "a")], "has no assistant's message"),
        ([say("system", "a")], "has a system's message alone"),
        ([say("assistant", "a")], "message 0 is the assistant's, after nobody"),
        ([say("user", "a"), say("user", "b")], "message 1 is the user's, after the user"),
        (
            [say("user", "a"), say("assistant", "b"), say("assistant", "c")],
            "message 2 is the assistant's, after the assistant",
        ),
        ([say("user", "a"), say("system", "b")], "message 1 is the system's, after the user"),
        ([say("user", "a"), say("tool", "b")], "message 1 is a tool's, but no assistant has called it"),
        ([say("bot", "a")], 'message 0 has the role "bot"'),
        ([say("user", "")], "message 0 is empty"),
        ([say("user", [])], "message 0 is empty"),
        ([say("user", None)], "message 0 has content that is not text"),
        ([say("user", 5)], "message 0 has content that is not text"),
        ([say("user", [{"type": "image", "text": "x"}])], "message 0 has content that is not text"),
        ([say("user", ["x"])], "message 0 has content that is not text"),
        (
            [say("user", [{"type": "call", "text": "x"}])],
            "message 0 has a call or a result, but is not the assistant's",
        ),
        ([say("user", "a"), say("assistant", None, tool_calls=[{}])], "message 1 has a tool call without a name"),
    ],
    ids=range(20),
)
def test_what_is_malformed_says_why(conversation: Any, reason: str) -> None:
    with pytest.raises(MalformedConversation) as caught:
        render(conversation, BYTES)
    assert str(caught.value) == reason


def test_neither_markers_nor_a_template_is_refused(tmp_path: Path) -> None:
    path = str(write_ranks(tmp_path / "x.tiktoken"))
    without: list[tuple[Tokenizer, str, str]] = [
        (
            file_tokenizer(tmp_path / "tokenizer.json", piece_level()),
            "user_start, user_end, assistant_start and assistant_end",
            "user_start",
        ),
        (
            opened(kind="tiktoken", path=path, special_tokens=[f"<|{role}|>" for role in ROLES[:6]]),
            "call_start",
            "call_start",
        ),
    ]
    for tokenizer, missing, first in without:
        with pytest.raises(SourceError) as caught:
            render([say("user", "a"), say("assistant", [{"type": "call", "text": "x"}])], tokenizer)
        assert str(caught.value) == (
            f"tokenizer: has no token for {missing}, and no chat template: conversations cannot be written. "
            f'Write markers = {{ {first} = "<|{first}|>" }} with tokens that it has, or chat_template = "chat.jinja".'
        )
