"""A source with fill-in-the-middle, from its config to batches: prepared or streamed, with every token's address."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import make_config
from tests.support.texts import write_lines
from trivium.config.schema import Config
from trivium.errors import PlanError, ResumeError
from trivium.loader.loader import Loader
from trivium.loader.trace import places_of, rows_of
from trivium.plan.export import plan_json
from trivium.plan.make import make_plan
from trivium.plan.record import first_difference
from trivium.text.fim import USUAL_NAMES
from trivium.text.tokenizer import Tokenizer, open_tokenizer
from trivium.text.train_tokenizer import train_tokenizer, write_tokenizer

TEXTS = [f"def function_{number}(x):\n    return x + {number}\n" for number in range(80)]
STAGE: dict[str, Any] = {"steps": 4, "seq_len": 16, "batch_size": 16, "mixture": {"code": 1.0}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus, and a tokenizer that has the tokens."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "code" / "code.jsonl", TEXTS)
    write_tokenizer(train_tokenizer(TEXTS, 400, USUAL_NAMES[0]), tmp_path / "tokenizer")
    return tmp_path


def config_of(tokenizer: dict[str, Any] | None = None, stage: dict[str, Any] | None = None, **source: Any) -> Config:
    source = source if "kind" in source else {"kind": "text", "path": "code"} | source
    return make_config({"code": source}, [STAGE | (stage or {})], tokenizer=tokenizer or {"path": "tokenizer"})


def opened(config: Config) -> Tokenizer:
    found = open_tokenizer(config.tokenizer)
    assert found is not None
    return found


def is_whole(text: str) -> bool:
    """Whether all pieces of a document have been read."""
    marks = [name in text for name in USUAL_NAMES[0]]
    return text.endswith("<|eos|>") and (all(marks) or (not any(marks) and text.startswith("def")))


def put_together(text: str) -> str:
    """The text of a whole document."""
    prefix, suffix, middle = USUAL_NAMES[0]
    text = text.removesuffix("<|eos|>")
    if prefix not in text:
        return text
    before, rest = text.removeprefix(prefix).split(suffix)
    behind, between = rest.split(middle)
    return f"{before}{between}{behind}"


@pytest.mark.usefixtures("folder")
def test_every_document_keeps_its_number_its_line_and_its_address() -> None:
    config = config_of(fim={"rate": 0.5, "spm": 0.5})
    plan, tokenizer = make_plan(config, prepare=True), opened(config)
    pieces: dict[int, dict[int, str]] = {}
    for step in range(4):
        for row in rows_of(plan, step):
            for piece in row.pieces:
                assert f"code.jsonl:{piece.document + 1}" in piece.file.replace(" line ", ":")
                places = places_of(plan, "code", piece.document)
                assert (step, row.row, piece.start, piece.stop) in [(p.step, p.row, p.start, p.stop) for p in places]
                pieces.setdefault(piece.document, {})[piece.start] = tokenizer.decode(piece.tokens.tolist())
    texts = {number: "".join(text for _, text in sorted(parts.items())) for number, parts in pieces.items()}
    whole = {number: put_together(text) for number, text in texts.items() if is_whole(text)}
    assert whole == {number: TEXTS[number] for number in whole}
    assert len(whole) > 10
    assert {USUAL_NAMES[0][0] in texts[number] for number in whole} == {True, False}
    assert plan_json(plan)["sources"]["code"]["fim"] == {"rate": 0.5, "spm": 0.5}


def lengths_of(config: Config) -> tuple[int, int]:
    source = make_plan(config, prepare=True).sources["code"]
    return source.documents, source.tokens


@pytest.mark.usefixtures("folder")
def test_documents_are_as_many_and_those_that_are_cut_are_longer() -> None:
    (documents, plain), (same, cut) = lengths_of(config_of()), lengths_of(config_of(fim={"rate": 1.0}))
    assert documents == same == len(TEXTS)
    assert plain + 3 * documents <= cut < plain + 8 * documents  # a cut within a token makes one more of it


@pytest.mark.usefixtures("folder")
def test_a_stream_has_the_tokens_of_the_prepared_source() -> None:
    fim, stage = {"rate": 0.5, "spm": 0.5}, {"steps": 20, "seq_len": 64, "packing": "pad"}
    stream = {"kind": "stream", "dataset": "code", "lanes": 1}
    streamed, prepared = (
        documents_of(config_of(stage=stage, **source, fim=fim)) for source in (stream, {"kind": "text", "path": "code"})
    )
    assert streamed == prepared
    assert len(prepared) == len(TEXTS)


def documents_of(config: Config) -> set[tuple[int, ...]]:
    """The tokens of every document, each in a row of its own."""
    with Loader(make_plan(config, prepare=True)) as loader:
        return {
            tuple(tokens[segments == 0].tolist())
            for _, batch in loader
            for tokens, segments in zip(batch.tokens, batch.segments, strict=True)
        }


@pytest.mark.usefixtures("folder")
def test_a_change_of_the_past_is_refused_by_its_key() -> None:
    plain, half, tenth = (
        make_plan(config_of(**each), prepare=True) for each in ({}, {"fim": {"rate": 0.5}}, {"fim": {"rate": 0.1}})
    )
    changes = [first_difference(one.record(2), other.record(2)) for one, other in ((half, tenth), (plain, half))]
    assert [str(change) for change in changes] == [
        "sources.code.fim.rate was 0.5 and is now 0.1",
        "sources.code.fim.rate was absent and is now 0.5",
    ]
    with pytest.raises(ResumeError, match=r"sources\.code\.fim\.rate was 0\.5 and is now 0\.1"):
        Loader(tenth).load_state_dict(Loader(half).state_at(2))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kind", ["text", "stream"])
def test_a_tokenizer_without_the_tokens_is_refused_in_words(kind: str) -> None:
    where: dict[str, Any] = {"path": "code"} if kind == "text" else {"dataset": "code"}
    config = config_of({"kind": "bytes"}, kind=kind, fim={"rate": 0.5}, **where)
    with pytest.raises(PlanError, match=r"sources\.code: fim: the tokenizer has no tokens for fill-in-the-middle"):
        Loader(make_plan(config, prepare=True))
