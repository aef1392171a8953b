"""Conversations with a tiny model: each answer is the one that a prompt of all that was said before gets."""

import numpy as np
import pytest

from tests.support.models import BYTES, SPEC, byte_model
from tests.support.tokenizers import byte_level, opened, piece_level, write_json
from trivium.ask.generate.generate import generate
from trivium.ask.generate.parts import PartReader, parts_of
from trivium.ask.generate.row import Writing, calculator_calls, text_ends, turn_ends
from trivium.ask.generate.sampling import GREEDY
from trivium.ask.generate.talk import Talk
from trivium.engine.base import Engine
from trivium.errors import UsageError
from trivium.text.chat import render_prompt
from trivium.text.conversation import MessagePart
from trivium.text.tokenizer import Tokenizer

ONLY_LETTERS = 128  # so that what a model says is written again as the same bytes


@pytest.fixture(scope="module")
def engine() -> Engine:
    return byte_model()


def said(parts: list[MessagePart]) -> str:
    return "".join(part.text for part in parts)


def test_each_answer_sees_all_that_was_said_before(engine: Engine) -> None:
    writing = Writing(30, turn_ends(BYTES), GREEDY, calls=calculator_calls(BYTES), vocab=ONLY_LETTERS)
    talk = Talk(engine, BYTES, writing, SPEC.max_seq_len, system="Be short.")
    for question in ("Who are you, and what do you do?", "a", "b"):
        before = [*talk.messages, {"role": "user", "content": question}]
        ((fresh,),) = generate(engine, [render_prompt(before, BYTES)], writing)
        assert said(list(talk.ask(question))) == BYTES.decode(fresh.tokens)
    assert [message["role"] for message in talk.messages] == ["system", *["user", "assistant"] * 3]
    assert talk.prefills < 3


def test_a_conversation_that_fills_the_model_is_refused(engine: Engine) -> None:
    talk = Talk(engine, BYTES, Writing(30, sampling=GREEDY, vocab=ONLY_LETTERS), SPEC.max_seq_len)
    with pytest.raises(UsageError) as refusal:
        list(talk.ask("x" * 200))
    assert str(refusal.value) == "the conversation has 204 tokens, and the model reads 160. Start a new one: /new."
    assert talk.messages == []
    answer = said(list(talk.ask("x" * 150)))
    assert len(answer) == 6, "as much as there is room for"


def test_an_empty_answer_leaves_no_trace(engine: Engine) -> None:
    stop = frozenset(range(BYTES.vocab))
    talk = Talk(engine, BYTES, Writing(30, stop, GREEDY), SPEC.max_seq_len)
    assert list(talk.ask("Hello?")) == []
    assert talk.messages == []


def test_parts_of_an_answer() -> None:
    calls = calculator_calls(BYTES)
    assert calls is not None
    tokens = [*b"It is ", calls.start, *b"12/60", calls.end, calls.result_start, *b"0.2", calls.result_end, *b"!"]
    expected = [
        MessagePart("text", "It is "),
        MessagePart("call", "12/60"),
        MessagePart("result", "0.2"),
        MessagePart("text", "!"),
    ]
    assert parts_of(tokens, BYTES, calls) == expected
    assert parts_of(tokens[:10], BYTES, calls) == [MessagePart("text", "It is "), MessagePart("call", "12/")]


def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    files = [write_json(folder / f"{n}.json", each) for n, each in enumerate((byte_level(), piece_level()))]
    return [BYTES, *(opened(path=str(file)) for file in files)]


def test_text_is_given_as_soon_as_its_characters_are_whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    for tokenizer in tokenizers(tmp_path_factory):
        (tokens,) = tokenizer.encode(["the naïve café 🙂 is the best, in the end"])
        reader = PartReader(tokenizer, None)
        pieces = [part.text for token in tokens.tolist() for part in reader.feed(token)]
        assert "".join(pieces) == tokenizer.decode(tokens.tolist())
        assert all("\ufffd" not in piece for piece in pieces)
        assert len(pieces) > 10
        assert list(reader.close()) == []


def test_half_a_character_at_the_end_is_given_when_the_row_ends() -> None:
    reader = PartReader(BYTES, None)
    assert [*reader.feed(0xC3)] == []
    assert [*reader.close()] == [MessagePart("text", "\ufffd")]


def test_what_ends_a_text_and_a_turn() -> None:
    eos, bos, end = (BYTES.special(role) for role in ("eos", "bos", "assistant_end"))
    assert text_ends(BYTES) == {eos, bos}
    assert turn_ends(BYTES) == {eos, bos, end}


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def test_a_turn_ends_with_the_templates_own_token(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("chatml")
    described = byte_level()
    names = {"<|bos|>": "<|im_start|>", "<|eos|>": "<|im_end|>"}
    for token in described["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"].replace("|>", "-|>"))
    described["model"]["vocab"] = {
        names.get(name, name.replace("|>", "-|>") if name.startswith("<|") else name): number
        for name, number in described["model"]["vocab"].items()
    }
    write_json(folder / "tokenizer.json", described)
    (folder / "chat_template.jinja").write_text(CHATML)
    tokenizer = opened(path=str(folder))
    (end,) = turn_ends(tokenizer)
    assert tokenizer.decode([end]) == "<|im_end|>"
    assert np.flatnonzero(render_prompt([{"role": "user", "content": "a"}], tokenizer) == end).size == 1
