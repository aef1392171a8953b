"""`trivium inspect` and `trivium verify` on real files of every format, as a user sees them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import trivium
from tests.support.corpus import write_source
from tests.support.writers import write_bin, write_ds, write_megatron, write_npy

DOCUMENTS = [[10, 11, 12, 13], [20, 21, 0], [30, 31, 32, 33, 34, 0], [40, 0]]
CONFIG = """
[run]
name = "test"
[model]
size = "tiny"
vocab = 100
[sources.web]
kind = "tokens"
{source}
[[stages]]
name = "only [one]"
steps = 3
seq_len = 8
batch_size = 2
"""


def config(folder: Path, source: str) -> None:
    (folder / "run.toml").write_text(CONFIG.format(source=source))


@pytest.mark.parametrize(
    ("write", "source"),
    [
        (lambda folder: write_ds(folder / "web/a.ds", DOCUMENTS), 'path = "web"'),
        (lambda folder: write_npy(folder / "web.npy", DOCUMENTS), 'path = "web.npy"\neos = 0'),
        (lambda folder: write_bin(folder / "web.bin", DOCUMENTS), 'path = "web.bin"\ndtype = "uint16"\neos = 0'),
        (lambda folder: write_megatron(folder / "web/a.bin", [[each] for each in DOCUMENTS]), 'path = "web/*.bin"'),
    ],
    ids=["ds", "npy", "bin", "megatron"],
)
def test_plan_and_inspect_read_every_format(tmp_path: Path, write: Callable[[Path], object], source: str) -> None:
    write(tmp_path)
    config(tmp_path, source)
    code, out, err = trivium(tmp_path, "plan", "run.toml")
    assert (code, err) == (0, "")
    assert "only [one]" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    code, out, err = trivium(tmp_path, "inspect", "run.toml", "--step", "0")
    assert (code, err) == (0, "")
    assert out.startswith("step 0: stage only [one], 2 rows of 8, bestfit\n\nrow 0: web, epoch 1, position 0")
    assert "30 31 32 33 34 0" in out


def test_the_loss_mask_is_seen_when_piped_too(tmp_path: Path) -> None:
    write_ds(tmp_path / "web/a.ds", [[10, 11, 12, 13, 14, 15]], loss=[1, 1, 0, 0, 1, 1])
    config(tmp_path, 'path = "web"')
    _, out, _ = trivium(tmp_path, "inspect", "run.toml", "--step", "0", "--row", "0")
    assert "  document 0 in a.ds, tokens 0 to 6 of 6 (whole), 3 in loss (0 to 1, 3 to 5)" in out


def test_a_document_is_found_or_said_why_not(tmp_path: Path) -> None:
    write_source(tmp_path / "web", [[5, 0, 9, 4, 7, 6, 8, 3] * 4])
    config(tmp_path, 'path = "web"\nvalidation = 0.4')
    said = {
        document: trivium(tmp_path, "inspect", "run.toml", "model.vocab=999", "--document", f"web:{document}")[1]
        for document in (1, 2, 3, 4)
    }
    assert said[1] == "document 1 of web is read in no step of this run: it is empty.\n"
    for document in (2, 3, 4):
        no_place = f"document {document} of web is read in no step of this run: "
        ends = ("it is held out for validation.\n", "the run ends before it.\n")
        assert said[document].startswith("step ") or said[document] in [no_place + end for end in ends]


def test_what_is_not_there_is_refused_in_a_line(tmp_path: Path) -> None:
    write_ds(tmp_path / "web/a.ds", DOCUMENTS)
    config(tmp_path, 'path = "web"')
    for arguments, message in (
        (
            ["--step", "0", "--row", "9"],
            "inspect: step 0 of stage only [one] has rows 0 to 1 of web: none matches --row 9.\n",
        ),
        (["--step", "3"], "there is no step 3: the run has 3 steps, from 0 to 2.\n"),
        (
            ["--document", "web"],
            '--document: "web" is not a document. Write its source and number, such as web:1234.\n',
        ),
        (["--document", "web:9"], "web has no document 9. Give one from 0 to 3.\n"),
        ([], 'inspect: give one of --step 41337, --document web:1234 and --find "some text".\n'),
    ):
        assert trivium(tmp_path, "inspect", "run.toml", *arguments) == (2, "", message)


def test_verify_keeps_a_manifest_and_finds_a_flipped_byte(tmp_path: Path) -> None:
    write_ds(tmp_path / "web/a.ds", DOCUMENTS)
    config(tmp_path, 'path = "web"')
    counts = "web: 1 file, 4 documents, 15 tokens"
    assert trivium(tmp_path, "verify", "run.toml") == (
        0,
        f"{counts}: readable; no manifest.json to compare them with (--write writes one).\n",
        "",
    )
    assert trivium(tmp_path, "verify", "run.toml", "--write")[0] == 0
    assert trivium(tmp_path, "verify", "run.toml") == (0, f"{counts}: match manifest.json.\n", "")
    tokens = np.fromfile(tmp_path / "web/a.ds", "<u2")
    tokens[3] ^= 1
    tokens.tofile(tmp_path / "web/a.ds")
    code, out, err = trivium(tmp_path, "verify", "run.toml")
    assert (code, out) == (2, "")
    assert err.startswith("run.toml:7: sources.web: a.ds: hash was ")
