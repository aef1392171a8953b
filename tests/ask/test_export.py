"""An export as other people's tools read it: transformers has our tokens, conversations and greedy words; and back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.support.batches import TINY
from tests.support.tokenizers import LINES, TRIED, byte_level, opened, piece_level, write_json, write_ranks
from trivium.ask.export import write_tokenizer
from trivium.ask.generate.generate import generate
from trivium.ask.generate.row import Writing, turn_ends
from trivium.ask.generate.sampling import GREEDY
from trivium.ask.open import LoadedModel, open_model
from trivium.engine.base import EngineSettings
from trivium.engine.torch.engine import TorchEngine
from trivium.text.chat import REQUIRED_MARKERS, render, render_prompt
from trivium.text.tokenizer import Tokenizer
from trivium.text.tokenizer_export import tokenizer_files

KINDS = ["bytes", "ranks", "file", "own names", "template"]
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 12 / 60?"},
    {"role": "assistant", "content": "It is 0.2, of course.\n"},
    {"role": "user", "content": "  And the naïve café 🙂?"},
    {"role": "assistant", "content": " Closed."},
]
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 12 / 60?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Well, "},
            {"type": "call", "text": "12/60"},
            {"type": "result", "text": "0.2"},
            {"type": "text", "text": "it is 0.2."},
        ],
    },
    {"role": "user", "content": "And 1 + 1?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 1}}}]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
]
SYSTEM = {"role": "system", "content": "Be kind."}
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def renamed(described: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A tokenizer.json with other names of its special tokens."""
    for token in described["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocab = described["model"]["vocab"]
    described["model"]["vocab"] = {names.get(name, name): number for name, number in vocab.items()}
    return described


def make_tokenizer(kind: str, folder: Path) -> Tokenizer:
    if kind == "bytes":
        return opened(kind="bytes")
    if kind == "ranks":
        return opened(kind="tiktoken", path=str(write_ranks(folder / "ranks.tiktoken")))
    if kind == "file":
        return opened(path=str(write_json(folder / "tokenizer.json", byte_level())))
    if kind == "own names":
        names = {"<|user_start|>": "[U]", "<|assistant_end|>": "[/A]"}
        file = write_json(folder / "tokenizer.json", renamed(byte_level(), names))
        return opened(path=str(file), markers={"user_start": "[U]", "assistant_end": "[/A]"})
    names = {"<|bos|>": "<|im_start|>", "<|eos|>": "<|im_end|>"}
    names |= {f"<|{who}_{end}|>": f"[{who} {end}]" for who in ("user", "assistant") for end in ("start", "end")}
    write_json(folder / "tokenizer.json", renamed(byte_level(), names))
    (folder / "chat_template.jinja").write_text(CHATML)
    return opened(path=str(folder), bos="<|im_start|>", eos="<|im_end|>")


class Exported:
    """A tiny model with a tokenizer of some kind, in a folder, and as transformers opens it."""

    def __init__(self, kind: str, folder: Path) -> None:
        (folder / "own").mkdir()
        self.kind, self.folder = kind, folder / "out"
        self.tokenizer = make_tokenizer(kind, folder / "own")
        spec = replace(TINY, vocab=self.tokenizer.vocab, max_seq_len=128, qk_norm=kind == "ranks")
        self.engine = TorchEngine(EngineSettings(spec, device="cpu", seed=3))
        self.engine.export(self.folder)
        bos = self.tokenizer.special("bos")
        self.before = () if kind in ("file", "template") or bos is None else (bos,)
        self.said = write_tokenizer(self.tokenizer, self.folder, self.before)
        self.theirs: Any = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(self.folder)


@pytest.fixture(scope="module", params=KINDS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(request.param, tmp_path_factory.mktemp("exported"))


def ids(tokens: np.ndarray) -> list[int]:
    return [int(token) for token in tokens]


def test_all_of_it_is_written(exported: Exported) -> None:
    names = {path.name for path in exported.folder.iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}
    assert names == {"config.json", "model.safetensors", *tokenizer}
    assert exported.said == ", tokenizer and chat template"


def test_texts_have_the_same_tokens(exported: Exported) -> None:
    for text in TRIED:
        (ours,) = exported.tokenizer.encode([text])
        assert exported.theirs(text, add_special_tokens=False)["input_ids"] == ids(ours)
        assert exported.theirs(text)["input_ids"] == [*exported.before, *ids(ours)]
        assert exported.theirs.decode(ids(ours)) == exported.tokenizer.decode(ids(ours))


def test_conversations_have_the_same_tokens(exported: Exported) -> None:
    talks = [TALK, [SYSTEM, *TALK]]
    if exported.kind != "template":
        talks += [CALLED, CALLED[:2]]
    for talk in talks:
        ours = render(talk, exported.tokenizer)
        theirs = exported.theirs.apply_chat_template(talk, return_dict=True)
        assert theirs["input_ids"] == ids(ours.tokens)
        asked = render_prompt(talk[:-1] if talk[-2]["role"] == "user" else talk[:1], exported.tokenizer)
        question = talk[:-1] if talk[-2]["role"] == "user" else talk[:1]
        theirs = exported.theirs.apply_chat_template(question, add_generation_prompt=True, return_dict=True)
        assert theirs["input_ids"] == ids(asked)


@pytest.mark.filterwarnings("ignore")
def test_the_assistants_words_are_the_same(exported: Exported) -> None:
    if exported.kind == "template":
        pytest.skip("has no generation blocks")
    for talk in (TALK, CALLED):
        theirs = exported.theirs.apply_chat_template(talk, return_dict=True, return_assistant_tokens_mask=True)
        assert theirs["assistant_masks"] == ids(render(talk, exported.tokenizer).loss_mask)


@pytest.mark.filterwarnings("ignore")
def test_greedy_words_are_the_same(exported: Exported) -> None:
    ends = turn_ends(exported.tokenizer)
    prompt = render_prompt(TALK[:1], exported.tokenizer)
    ((row,),) = generate(exported.engine, [prompt], Writing(40, ends, GREEDY))
    assert len(row.tokens) > 3
    with torch.no_grad():
        theirs = exported.model.generate(torch.tensor([ids(prompt)]), max_new_tokens=40, do_sample=False)
    written = theirs[0, len(prompt) :].tolist()
    assert (written[:-1] if written[-1] in ends else written) == row.tokens


def test_what_was_exported_is_opened_again_as_it_was(exported: Exported) -> None:
    again: LoadedModel = open_model(exported.folder, device="cpu")
    assert again.before == exported.before
    assert again.ends == turn_ends(exported.tokenizer)
    assert again.seq_len == 128
    for text in TRIED:
        assert ids(again.tokenizer.encode([text])[0]) == ids(exported.tokenizer.encode([text])[0])
    for talk in (TALK, [SYSTEM, *TALK]):
        ours, theirs = render(talk, exported.tokenizer), render(talk, again.tokenizer)
        assert ids(theirs.tokens) == ids(ours.tokens)
        assert ids(theirs.loss_mask) == ids(ours.loss_mask)
    prompts = [again.prompt(line) for line in LINES]
    writing = Writing(20, again.ends, GREEDY)
    both = [generate(engine, prompts, writing) for engine in (exported.engine, again.engine)]
    assert [row.tokens for (row,) in both[0]] == [row.tokens for (row,) in both[1]]


def test_a_tokenizer_that_would_give_other_tokens_is_left_out(tmp_path: Path) -> None:
    # [[:alpha:]] is of ASCII in one library and of Unicode in the other: only there "naïve" is one word.
    ranks = write_ranks(tmp_path / "ranks.tiktoken", [b"\xafv"])
    tokenizer = opened(kind="tiktoken", path=str(ranks), pattern=r"[[:alpha:]]+|[^[:alpha:]]+")
    written = tokenizer_files(tokenizer, 128, ())
    assert written.files == {}
    assert written.skipped == ("the tokenizer, whose pattern splits text differently in the other library",)


def test_a_template_that_would_give_other_tokens_is_left_out(tmp_path: Path) -> None:
    # A space before the first words only: of each turn as we write it, of the first turn as a template does.
    described = piece_level()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    described["added_tokens"] += [
        {"id": 400 + number, "content": f"<|{role}|>", "special": True, **flags}
        for number, role in enumerate(REQUIRED_MARKERS)
    ]
    described["normalizer"] = None
    described["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    tokenizer = opened(path=str(write_json(tmp_path / "tokenizer.json", described)))
    written = tokenizer_files(tokenizer, 128, ())
    assert set(written.files) == {"tokenizer.json", "tokenizer_config.json"}
    assert written.skipped == ("the chat template, which would give other tokens",)
