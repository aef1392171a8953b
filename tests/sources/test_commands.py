"""`trivium prepare`, and the commands that find what it made, as people run them."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import trivium
from tests.support.texts import TINY_ON_BYTES, write_lines

CONFIG = f"""{TINY_ON_BYTES}[sources.web]
kind = "text"
path = "web.jsonl"
[sources.talk]
kind = "chat"
path = "talk.jsonl"
[[stages]]
name = "only"
epochs = {{ web = 1 }}
mixture = {{ web = 0.5, talk = 0.5 }}
seq_len = 64
batch_size = 2
"""

GAP = ": its size and epochs are not known."
FIX = "Run trivium prepare CONFIG, or trivium plan --prepare CONFIG."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "web.jsonl", ["a heron waits", "the tide turns", "a heron, a heron"])
    talk = {"messages": [{"role": "user", "content": "a heron?"}, {"role": "assistant", "content": "no"}]}
    (tmp_path / "talk.jsonl").write_text(json.dumps(talk) + "\n")
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def test_a_config_is_prepared_planned_verified_and_searched(folder: Path, own_cache: Path) -> None:
    code, out, err = trivium(folder, "prepare", "run.toml")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith(f"web: 3 documents, 46 tokens in {own_cache}/prepared/")
    assert second.startswith(f"talk: 1 documents, 15 tokens in {own_cache}/prepared/")
    code, out, err = trivium(folder, "verify", "run.toml")
    assert (code, err) == (0, "")
    assert out == (
        "web: 1 file, 3 documents, 46 tokens: match manifest.json.\n"
        "talk: 1 file, 1 documents, 15 tokens: match manifest.json.\n"
    )
    code, out, err = trivium(folder, "inspect", "run.toml", "--find", "heron", "--most", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "document 0 of talk in talk.jsonl line 1: ... a heron?no ..."
    assert lines[1].startswith("step 0 row ")
    assert "document 0 of web in web.jsonl line 1: ... a heron waits ..." in lines
    assert lines[-1] == "and more: --most 20 shows them."
    _, out, _ = trivium(folder, "inspect", "run.toml", "--find", "pelican")
    assert out == "no document of talk, web holds this text.\n"
    (manifest,) = own_cache.glob("prepared/*/00000.ds.loss")
    damaged = bytearray(manifest.read_bytes())
    damaged[-1] ^= 1
    manifest.write_bytes(damaged)
    code, out, err = trivium(folder, "verify", "run.toml")
    assert (code, err.startswith("run.toml:11: sources.talk: 00000.ds: hash was ")) == (2, True)


def test_plan_inspect_and_verify_prepare_nothing(folder: Path, own_cache: Path) -> None:
    not_prepared = [
        f"{name} is not prepared yet (1 file, {size} bytes){{}} {FIX}"
        for name, size in (("web.jsonl", 109), ("talk.jsonl", 96))
    ]
    of_verify, of_plan = ([each.format(more) for each in not_prepared] for more in (".", GAP))
    code, out, err = trivium(folder, "plan", "run.toml", "--json")
    assert (code, err, json.loads(out)["unknown"][:2]) == (
        0,
        "",
        [f"sources.web: {of_plan[0]}", f"sources.talk: {of_plan[1]}"],
    )
    for arguments in (["--step", "0"], ["--document", "web:0"], ["--find", "heron"]):
        code, out, err = trivium(folder, "inspect", "run.toml", *arguments)
        assert (code, out, err.splitlines()[0]) == (2, "", f"run.toml:8: sources.web: {of_plan[0]}")
    assert trivium(folder, "verify", "run.toml") == (
        2,
        "",
        f"run.toml:8: sources.web: {of_verify[0]}\nrun.toml:11: sources.talk: {of_verify[1]}\n",
    )
    assert not any(own_cache.iterdir())
    code, out, err = trivium(folder, "plan", "run.toml", "--json", "--prepare")
    assert (code, err, json.loads(out)["unknown"]) == (0, "", [])
    assert trivium(folder, "verify", "run.toml")[0] == 0


def test_every_source_that_cannot_be_prepared_is_named(folder: Path) -> None:
    (folder / "web.jsonl").write_text("broken\n")
    (folder / "talk.jsonl").unlink()
    code, out, err = trivium(folder, "prepare", "run.toml")
    assert (code, out) == (2, "")
    assert err == (
        "run.toml:8: sources.web: no document was found in 1 lines (1 broken JSON: web.jsonl line 1). "
        "Look at its path and column.\n"
        "run.toml:11: sources.talk: talk.jsonl does not exist.\n"
    )


def test_paths_are_prepared_into_a_folder(folder: Path) -> None:
    arguments = ["prepare", "web.jsonl", "--tokenizer", "bytes", "--out", "tokens", "--add", "none"]
    said = "tokens: 3 documents, 43 tokens from 109 bytes of input\n"
    assert trivium(folder, *arguments) == (0, said, "")
    assert trivium(folder, *arguments) == (0, said, "")
    names = [path.name for path in sorted((folder / "tokens").iterdir())]
    tokens = ["00000.ds", "00000.ds.index", "00000.ds.metadata", "00000.origins.json"]
    assert names == [".lock", *tokens, "manifest.json", "prepared.json"]


def test_paths_are_prepared_as_megatron_files_that_a_plan_reads(folder: Path) -> None:
    arguments = ["prepare", "web.jsonl", "--tokenizer", "bytes", "--out", "mega", "--format", "megatron"]
    assert trivium(folder, *arguments) == (0, "mega: 3 documents, 46 tokens from 109 bytes of input\n", "")
    names = [path.name for path in sorted((folder / "mega").iterdir())]
    assert names == [".lock", "00000.bin", "00000.idx", "00000.origins.json", "manifest.json", "prepared.json"]
    for path in ("mega", "mega/00000"):
        source = f'sources.web={{ kind = "tokens", path = "{path}" }}'
        code, out, err = trivium(folder, "plan", "run.toml", source, "--json")
        assert (code, err, json.loads(out)["sources"]["web"]["documents"]) == (0, "", 3)


def test_what_cannot_be_asked_is_refused_in_a_line(folder: Path) -> None:
    for arguments, message in (
        (
            ["web.jsonl", "--out", "tokens"],
            "prepare: --out needs a tokenizer too. Give --tokenizer tokenizer.json, or --tokenizer bytes.\n",
        ),
        (
            ["web.jsonl", "--out", "tokens", "--tokenizer", "bytes", "--add", "pad"],
            'prepare: --add "pad" is not known. Give bos, eos or none.\n',
        ),
        (
            ["run.toml", "--format", "megatron"],
            (
                "prepare: --format megatron needs --out and files of text. "
                "A config's conversations have loss masks, which Megatron's files cannot hold.\n"
            ),
        ),
        (
            ["run.toml", "--tokenizer", "bytes"],
            "prepare: --tokenizer and --add need --out; a config has these in its tables.\n",
        ),
        (
            ["nowhere", "--out", "tokens", "--tokenizer", "bytes"],
            "nowhere: does not exist. Write the path of a file or folder, or a pattern.\n",
        ),
    ):
        assert trivium(folder, "prepare", *arguments) == (2, "", message)
    assert not (folder / "tokens").exists()
