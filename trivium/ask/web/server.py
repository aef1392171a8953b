"""A page to talk to models on this machine: `/` is the page, `/ask` one answer, as it is written, line by line of JSON.

The browser has the conversation and sends all of it with each question, so that the server keeps nothing, and reads the
whole of it again. It listens on 127.0.0.1 alone, and answers only requests that name it as their Host; a question must
come from its own page (Origin) as JSON, so that no other site can ask. Answers are written one at a time.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trivium.ask.generate.row import Writing
from trivium.ask.generate.talk import Talk
from trivium.ask.open import LoadedModel
from trivium.errors import TriviumError
from trivium.files import parse_json
from trivium.local_page import LocalAnswers, LocalServer
from trivium.text.conversation import read_messages

LARGEST_REQUEST = 1 << 20  # bytes
MOST_MESSAGES = 1000
MOST_TOKENS = 4096  # of an answer
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"


class Asked(BaseModel):
    """A question to one of the models, with all that was said before it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[int, Field(ge=0)]
    messages: Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES)]
    question: Annotated[str, Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)]


@dataclass(frozen=True, slots=True)
class Talker:
    """A model, and how it writes."""

    model: LoadedModel
    writing: Writing
    system: str | None = None

    def answer(self, asked: Asked) -> Iterator[dict[str, Any]]:
        """The parts of an answer as they are written, and at last the whole conversation."""
        sampling = replace(self.writing.sampling, temperature=asked.temperature)
        writing = replace(self.writing, sampling=sampling, max_tokens=asked.max_tokens)
        if asked.messages:
            read_messages(asked.messages)  # refuses what is not a conversation
        model = self.model
        talk = Talk(model.engine, model.tokenizer, writing, model.seq_len, self.system, asked.messages)
        for part in talk.ask(asked.question):
            yield {"kind": part.kind, "text": part.text}
        yield {"messages": [each for each in talk.messages if each["role"] != "system"]}


class ChatServer(LocalServer):
    """Serves the page of some models."""

    def __init__(self, talkers: Sequence[Talker], port: int) -> None:
        self.talkers = talkers
        self.writing = threading.Lock()
        super().__init__("chat", port, _Answers)

    def page(self) -> str:
        """The page, with the models' names and first settings."""
        first = self.talkers[0].writing
        data = {
            "models": [
                {"title": each.model.title, "parameters": f"{each.model.spec.parameters:,}"} for each in self.talkers
            ],
            "temperature": first.sampling.temperature,
            "max_tokens": min(first.max_tokens, MOST_TOKENS),
            "most_tokens": MOST_TOKENS,
        }
        text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        page = (files("trivium.ask.web") / "page.html").read_text(encoding="utf-8")
        for name in ("page.css", "page.js"):
            page = page.replace(f"@{name}@", (files("trivium.ask.web") / name).read_text(encoding="utf-8"), 1)
        return page.replace("@POLICY@", POLICY, 1).replace("@DATA@", text, 1)


class RefusedError(Exception):
    """A request that is not answered: a code of HTTP, and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class _Answers(LocalAnswers):
    server: ChatServer

    def do_GET(self) -> None:  # noqa: N802
        if not self.is_for_us:
            self._refuse(403, f"ask for {self.server.url}")
        elif self.path != "/":
            self._refuse(404, "only / is served")
        else:
            self.answer(200, "text/html", self.server.page())

    def do_POST(self) -> None:  # noqa: N802
        try:
            talker, asked = self._asked()
        except RefusedError as refused:
            self._refuse(refused.code, str(refused))
            return
        self.begin(200, "application/x-ndjson")
        with self.server.writing:
            try:
                for line in talker.answer(asked):
                    self._write(line)
            except TriviumError as error:
                self._write({"error": str(error)})

    def _asked(self) -> tuple[Talker, Asked]:
        """A question of the server's own page; RefusedError for anything else."""
        headers, server = self.headers, self.server
        if not self.is_for_us:
            raise RefusedError(403, f"ask for {server.url}")
        if headers.get("Origin") not in {f"http://{host}" for host in server.hosts}:
            raise RefusedError(403, f"only the page at {server.url} may ask")
        if self.path != "/ask":
            raise RefusedError(404, "only /ask is served")
        if headers.get("Content-Type") != "application/json":
            raise RefusedError(415, "a question is JSON")
        length = headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST_REQUEST:
            raise RefusedError(413, f"a question has a length of {LARGEST_REQUEST:,} bytes at the most")
        try:
            asked = Asked.model_validate(parse_json(self.rfile.read(int(length))))
        except (ValueError, ValidationError):
            raise RefusedError(400, "this is not a question of the page") from None
        if asked.model >= len(server.talkers):
            raise RefusedError(400, f"there is no model {asked.model}")
        return server.talkers[asked.model], asked

    def _write(self, line: Mapping[str, Any]) -> None:
        self.wfile.write(json.dumps(line).encode() + b"\n")
        self.wfile.flush()

    def _refuse(self, code: int, why: str) -> None:
        self.answer(code, "text/plain", f"{why}\n")
