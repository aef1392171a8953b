"""`trivium sample` and `trivium chat`, as people run them, on a run, a checkpoint and a Hugging Face folder."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.command_line import trivium
from tests.support.models import byte_model
from tests.support.training import BYTE_RUN
from trivium.train.trainer import Trainer

ROOT = Path(__file__).parents[2]
Asked = Callable[..., tuple[int, str, str]]
CONFIG = (
    BYTE_RUN
    + """
[checkpoint]
every = 2
[sources.talk]
kind = "chat"
path = "talk.jsonl"
[[stages]]
name = "read"
steps = 2
mixture = { pages = 1.0 }
seq_len = 32
batch_size = 2
[[stages]]
name = "talk"
steps = 2
mixture = { talk = 1.0 }
seq_len = 64
batch_size = 2
rope = { theta = 50_000 }
"""
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/small, hf (weights alone) and a file of prompts."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "run.toml").write_text(CONFIG)
    (folder / "pages.jsonl").write_text(json.dumps({"text": "The tide comes in and goes out. " * 20}) + "\n")
    turns = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "At six."}]
    (folder / "talk.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    (folder / "bytes.bin").write_bytes(b"\xff\xfe\x00\x81")
    (folder / "prompts.txt").write_text("The tide\nIt goes\n\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        Trainer("run.toml", show=False).run()
    finally:
        os.chdir(before)
    byte_model().export(folder / "hf")
    return folder


@pytest.fixture
def ask(root: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Runs a command in that folder."""
    monkeypatch.chdir(root)
    return partial(trivium, root)


SHORT = ("--max-new-tokens", "8", "--device", "cpu")


def test_a_run_writes_after_a_prompt_and_the_same_again(ask: Asked) -> None:
    code, out, err = ask("sample", "runs/small", "--prompt", "The tide", "--samples", "2", *SHORT)
    assert code == 0
    assert err.startswith("step 4 of runs/small: ")
    assert out.startswith("--- 1\nThe tide")
    assert "--- 2\nThe tide" in out
    assert ask("sample", "runs/small", "--prompt", "The tide", "--samples", "2", *SHORT)[1] == out
    assert ask("sample", "runs/small", "--prompt", "The tide", "--samples", "2", "--seed", "1", *SHORT)[1] != out


def test_a_checkpoint_by_its_step_and_by_its_folder_is_the_same(ask: Asked) -> None:
    by_step = ask("sample", "runs/small", "--step", "2", "--temperature", "0", *SHORT)
    by_folder = ask("sample", "runs/small/checkpoints/step-00000002", "--temperature", "0", *SHORT)
    assert by_step[:2] == by_folder[:2]
    assert by_step[2].startswith("step 2 of runs/small: ")


def test_an_export_writes_and_answers_as_its_run_does(ask: Asked) -> None:
    code, out, _ = ask("export", "runs/small", "exported")
    assert code == 0
    assert out.startswith("exported: step 4 of runs/small, ")
    assert out.endswith(" parameters, tokenizer and chat template.\n")
    for more in (("--prompt", "The tide"), (), ("--chat", "--prompt", "When?")):
        greedy = ("--temperature", "0", "--json", *more, *SHORT)
        ran, exported = (json.loads(ask("sample", each, *greedy)[1]) for each in ("runs/small", "exported"))
        assert (exported["tokens"], exported["ended"]) == (ran["tokens"], ran["ended"])


def test_json_has_a_line_for_each_text(ask: Asked) -> None:
    code, out, _ = ask(
        "sample", "hf", "--tokenizer", "bytes", "--prompt-file", "prompts.txt", "--samples", "2", "--json", *SHORT
    )
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["number"], line["prompt"]) for line in lines] == [(0, "The tide")] * 2 + [(1, "It goes")] * 2
    assert all(line["ended"] in ("stop", "length") for line in lines)


def test_a_question_is_answered_and_the_prompt_not_repeated(ask: Asked) -> None:
    code, out, _ = ask("sample", "runs/small", "--chat", "--system", "Be kind.", "--prompt", "When?", *SHORT)
    assert code == 0
    assert "When?" not in out


def test_a_talk_through_a_pipe(ask: Asked) -> None:
    questions = "When?\n\nWhy?\n/new\nWhen?\n/quit\nnever read\n"
    code, out, err = ask("chat", "runs/small", "--temperature", "0", *SHORT, stdin=questions)
    assert (code, err.count("\n")) == (0, 1)
    assert len(out.encode().split(b"\n")) >= 4
    assert ask("chat", "runs/small", "--temperature", "0", *SHORT, stdin="When?\n")[1] in out


def test_a_question_that_is_too_long_is_said_and_the_talk_goes_on(ask: Asked) -> None:
    code, _, err = ask("chat", "runs/small", *SHORT, stdin=f"{'x' * 100}\nWhen?\n")
    assert code == 0
    assert "the conversation has 104 tokens, and the model reads 64. Start a new one: /new.\n" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("sample", "nowhere"),
            "nowhere: is not a folder. Give a run's folder, one of its checkpoints, or a Hugging Face folder.",
        ),
        (
            ("sample", "hf"),
            "hf: has no tokenizer. Give --tokenizer tokenizer.json, or --tokenizer bytes.",
        ),
        (("chat", "hf", "--step", "3"), "hf: is a Hugging Face folder, which has no steps. Omit --step."),
        (("sample", "runs/small", "--step", "3"), "runs/small: has no checkpoint of step 3. It has: 2, 4."),
        (("sample", "runs/small", "--system", "Be kind."), "sample: --system needs --chat."),
        (
            ("sample", "runs/small", "--prompt", "a", "--prompt-file", "prompts.txt"),
            "sample: give --prompt or --prompt-file, not both.",
        ),
        (
            ("sample", "runs/small", "--prompt-file", "none.txt"),
            "--prompt-file: none.txt does not exist. Name a file with one prompt on each line.",
        ),
        (
            ("sample", "runs/small", "--prompt-file", "bytes.bin"),
            "--prompt-file: bytes.bin is not text in UTF-8. Name a file with one prompt on each line.",
        ),
        (
            ("sample", "runs/small", "--device", "quux"),
            '--device: "quux" is not known. Write cuda, mps, tpu or cpu, or omit --device.',
        ),
        (("export", "runs/small", "run.toml/out"), "run.toml: File exists"),
        (("export", "runs/small", "/proc/x"), "/proc/x: No such file or directory"),
        (("report", "runs/small", "--out", "/proc/x"), "/proc/x: No such file or directory"),
        (("report", "runs/small", "--out", "run.toml/page.html"), "run.toml: File exists"),
        (
            ("sample", "runs/small", "--prompt", "The tide", "--max-new-tokens", "100"),
            "the prompt of 8 tokens and 100 more are 108, and the model reads 64. Ask for 56 or fewer, or shorten it.",
        ),
        (
            ("sample", "runs/small", "--prompt", "x" * 80),
            "the prompt of 80 tokens and 1 more are 81, and the model reads 64. Shorten it.",
        ),
    ],
    ids=lambda each: each[:40] if isinstance(each, str) else None,
)
def test_what_cannot_be_asked_is_said_in_one_line(ask: Asked, arguments: tuple[str, ...], message: str) -> None:
    assert ask(*arguments) == (2, "", f"{message}\n")


@pytest.mark.slow
def test_ctrl_c_ends_a_talk_without_a_traceback(root: Path) -> None:
    command = [sys.executable, "-m", "trivium", "chat", "runs/small", *SHORT]
    running = subprocess.Popen(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(b"When?\n")
    running.stdin.flush()
    assert running.stdout.readline()
    running.send_signal(signal.SIGINT)
    running.stdin.flush()
    try:
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 0
    assert b"Traceback" not in err


def test_an_export_that_fails_leaves_nothing(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(Path.cwd().iterdir())

    def full_disk(*_: object) -> str:
        assert [path.suffix for path in set(Path.cwd().iterdir()) - set(before)] == [".draft"]
        raise OSError(errno.ENOSPC, "No space left on device", "out")

    monkeypatch.setattr("trivium.ask.export.write_tokenizer", full_disk)
    assert ask("export", "runs/small", "out") == (2, "", "out: No space left on device\n")
    assert sorted(Path.cwd().iterdir()) == before
