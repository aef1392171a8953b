"""The page to talk to models: in a real browser, with a model that calls its calculator, and for its own page alone."""

import json
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from threading import Thread
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from tests.support.batches import settings_at
from tests.support.models import BYTES, SPEC, byte_model
from trivium.ask.generate.row import Writing, calculator_calls, turn_ends
from trivium.ask.generate.sampling import GREEDY
from trivium.ask.open import LoadedModel
from trivium.ask.web.server import LARGEST_REQUEST, ChatServer, Talker
from trivium.engine.base import Engine
from trivium.rows.batch import IGNORED, Batch
from trivium.text.chat import render

ANSWER = [
    {"type": "text", "text": "It is "},
    {"type": "call", "text": "12/60"},
    {"type": "result", "text": "0.2"},
    {"type": "text", "text": " <b>h</b>"},
]


def taught() -> Engine:
    """A model that knows one conversation by heart."""
    engine = byte_model()
    rendered = render([{"role": "user", "content": "When?"}, {"role": "assistant", "content": ANSWER}], BYTES)
    tokens = rendered.tokens.astype(np.int32)
    targets = np.where(rendered.loss_mask[1:], tokens[1:], IGNORED).astype(np.int32)
    inputs = tokens[None, :-1]
    positions = np.arange(inputs.shape[1], dtype=np.int32)[None]
    batch = Batch(inputs, targets[None], np.zeros_like(inputs), positions, np.zeros(1, np.int32), ("talk",))
    losses = [engine.step(batch, settings_at(step, lr=0.01)).loss for step in range(80)]
    assert losses[-1] < 0.1
    return engine


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    """The page of a model that was taught and of one that was not."""
    writing = Writing(40, turn_ends(BYTES), GREEDY, calls=calculator_calls(BYTES), vocab=BYTES.vocab)
    models = [
        LoadedModel(engine, BYTES, SPEC, SPEC.max_seq_len, title)
        for engine, title in ((taught(), "step 80 of runs/<i>taught</i>"), (byte_model(), "step 0 of runs/base"))
    ]
    with ChatServer([Talker(model, writing) for model in models], 0) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def post(server: ChatServer, body: bytes, **headers: str) -> tuple[int, str]:
    """The code and text of an answer to a request of the page, but for these headers."""
    own = {"Origin": f"http://127.0.0.1:{server.server_port}", "Content-Type": "application/json"}
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    given = {name: value for name, value in (own | headers).items() if value}
    connection.request("POST", "/ask", body, given)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def question(**changed: Any) -> bytes:
    asked = {"model": 0, "messages": [], "question": "When?", "temperature": 0.0, "max_tokens": 40}
    return json.dumps(asked | changed).encode()


def test_an_answer_comes_in_parts_and_the_conversation_goes_on(server: ChatServer) -> None:
    code, text = post(server, question())
    *parts, last = map(json.loads, text.splitlines())
    assert code == 200
    assert len(parts) > 4, "text comes as it is written"
    assert [part for part in parts if part["kind"] != "text"] == [
        {"kind": "call", "text": "12/60"},
        {"kind": "result", "text": "0.2"},
    ]
    assert last["messages"] == [{"role": "user", "content": "When?"}, {"role": "assistant", "content": ANSWER}]
    code, text = post(server, question(messages=last["messages"], question="And?"))
    assert [each["role"] for each in json.loads(text.splitlines()[-1])["messages"]] == ["user", "assistant"] * 2


def test_only_its_own_page_may_ask(server: ChatServer) -> None:
    port = server.server_port
    mine = f"only the page at http://127.0.0.1:{port}/ may ask\n"
    for origin in ("", "null", "http://evil.example", f"http://127.0.0.1:{port + 1}", f"https://127.0.0.1:{port}"):
        assert post(server, question(), Origin=origin) == (403, mine)
    assert post(server, question(), Host="evil.example") == (403, f"ask for http://127.0.0.1:{port}/\n")
    assert post(server, question(), **{"Content-Type": "text/plain"}) == (415, "a question is JSON\n")
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/", headers={"Host": f"evil.example:{port}"})
    assert connection.getresponse().status == 403
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff",
        b"[" * 10_000,
        question(model=-1),
        question(model=True),
        question(question=""),
        question(temperature="hot"),
        question(max_tokens=10**9),
        question(more=1),
        question(messages=[{}] * 2000),
    ],
)
def test_what_is_not_a_question_is_refused(server: ChatServer, body: bytes) -> None:
    assert post(server, body) == (400, "this is not a question of the page\n")


def test_questions_have_a_limit_and_mistakes_an_answer_in_words(server: ChatServer) -> None:
    code, text = post(server, question()[:-1], **{"Content-Length": str(LARGEST_REQUEST + 1)})
    assert (code, text) == (413, "a question has a length of 1,048,576 bytes at the most\n")
    assert post(server, question(model=2)) == (400, "there is no model 2\n")
    code, text = post(server, question(question="x" * 500))
    said = "the conversation has 504 tokens, and the model reads 160. Start a new one: /new."
    assert (code, json.loads(text)) == (200, {"error": said})
    code, text = post(server, question(messages=[{"role": "assistant", "content": "first"}]))
    assert (code, json.loads(text)) == (200, {"error": "message 0 is the assistant's, after nobody"})


@pytest.mark.slow
def test_two_models_answer_beside_one_another_in_a_browser(server: ChatServer, browser: Browser) -> None:
    page, complaints = browser.new_context(viewport={"width": 1000, "height": 700}).new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(server.url)
    expect(page.locator(".model")).to_have_count(2)
    expect(page.locator(".model h2").first).to_contain_text("step 80 of runs/<i>taught</i>")
    page.locator("#temperature").fill("0")
    page.locator("#question").fill("When?")
    page.keyboard.press("Enter")
    first = page.locator(".model").first
    expect(first.locator(".turn.user")).to_have_text("When?")
    expect(first.locator(".tool.call")).to_have_text("12/60")
    expect(first.locator(".tool.result")).to_have_text("0.2")
    expect(first.locator(".turn.assistant")).to_have_text("It is 12/600.2 <b>h</b>")
    expect(page.locator("#send")).to_be_visible(timeout=20_000)
    expect(page.locator(".model").nth(1).locator(".turn.assistant")).not_to_be_empty()
    page.locator("#question").fill("x" * 500)
    page.locator("#send").click()
    expect(first.locator(".error")).to_contain_text("the conversation has")
    page.locator("#new").click()
    expect(page.locator(".turn")).to_have_count(0)
    assert complaints == []


def test_the_first_settings_are_those_of_the_command(server: ChatServer) -> None:
    writing = replace(server.talkers[0].writing, max_tokens=9)
    other = ChatServer([replace(server.talkers[0], writing=writing)], 0)
    try:
        assert '"max_tokens": 9' in other.page()
        assert "\\u003ci\\u003etaught" in other.page()
    finally:
        other.server_close()
