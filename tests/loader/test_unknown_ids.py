"""Files that hold ids which their manifest denies: refused before a batch has them, with file and document."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import trivium
from tests.support.corpus import change_token, make_config, write_source
from tests.support.streams import stream_config
from trivium.errors import SourceError
from trivium.loader.loader import Loader
from trivium.plan.make import make_plan
from trivium.plan.plan import Plan

ADVICE = (
    "The file differs from its manifest: `trivium verify` names every file that does. "
    "Copy or write it again, or delete manifest.json to have it measured."
)


def plan_of(folder: Path, **tables: object) -> Plan:
    return make_plan(make_config({"web": folder}, [{"steps": 2, "seq_len": 16, "batch_size": 4}], **tables))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("loss", [False, True])
def test_an_id_beyond_the_models_vocabulary_names_file_and_document(tmp_path: Path, prefetch: int, loss: bool) -> None:
    folder = write_source(tmp_path / "web", [[10] * 5, [10] * 5], loss=loss)
    path = change_token(folder, 37, 4096)
    plan = plan_of(folder, model={"size": "tiny", "vocab": 4096})
    with pytest.raises(SourceError) as error, Loader(plan, prefetch=prefetch) as loader:
        list(loader)
    what = (
        f"source web: {path}: document 3 has the token id 4,096 (its token 7), the vocabulary is 0 to 4,095. {ADVICE}"
    )
    assert str(error.value) in {f"step {step}: {what}" for step in (0, 1)}


def test_only_the_rank_that_reads_it_refuses_it(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "web", [[16] * 8])
    change_token(folder, 37, 4096)
    plan = plan_of(folder, model={"size": "tiny", "vocab": 4096})
    refused = []
    for rank in range(4):
        try:
            list(Loader(plan, rank, 4))
        except SourceError:
            refused.append(rank)
    assert len(refused) == 1


def test_without_a_model_the_manifest_says_which_ids_there_are(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "web", [[10] * 5])
    plan = plan_of(folder)
    assert plan.model is None
    assert Loader(plan).batch(0).tokens.max() <= 49
    path = change_token(folder, 49, 50)
    with pytest.raises(SourceError) as error:
        list(Loader(plan_of(folder)))
    what = f"{path}: document 4 has the token id 50 (its token 9), the vocabulary is 0 to 49"
    assert what in str(error.value)


def test_an_id_below_0_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    path = tmp_path / "web/tokens.npy"
    np.save(path, np.arange(100, dtype=np.int32))
    plan = plan_of(tmp_path / "web", model={"size": "tiny", "vocab": 4096})
    with path.open("r+b") as file:
        file.seek(-4 * 100, 2)
        file.write(np.int32(-100).tobytes())
    with pytest.raises(SourceError) as error:
        list(Loader(plan))
    assert f"{path}: document 0 has the token id -100 (its token 0), the vocabulary is 0 to 4,095" in str(error.value)


def test_a_stream_whose_tokenizer_has_more_ids_than_the_model_names_lane_and_example(tmp_path: Path) -> None:
    plan = make_plan(stream_config(tmp_path, [{"steps": 2, "seq_len": 32, "batch_size": 2, "mixture": {"web": 1.0}}]))
    assert plan.model is not None
    smaller = tuple(replace(stage, vocab=100) for stage in plan.stages)
    with pytest.raises(SourceError) as error, Loader(replace(plan, stages=smaller)) as loader:
        loader.batch(0)
    assert str(error.value) == (
        "step 0: source web: lane 0, window 0 (file 0, example 10): document 5 has the token id 120 (its token 8), "
        "the vocabulary is 0 to 99. Use a tokenizer that fits the model."
    )


def test_inspect_refuses_it_in_a_line(tmp_path: Path) -> None:
    path = change_token(write_source(tmp_path / "web", [[10] * 5]), 37, 4096)
    (tmp_path / "run.toml").write_text(
        """
run.name = "test"
model = { size = "tiny", vocab = 4096 }
sources.web = { kind = "tokens", path = "web" }
stages = [{ name = "one", steps = 1, seq_len = 16, batch_size = 4 }]
"""
    )
    code, out, err = trivium(tmp_path, "inspect", "run.toml", "--step", "0")
    assert (code, out) == (2, "")
    what = f"{path.relative_to(tmp_path)}: document 3 has the token id 4,096 (its token 7)"
    assert err == f"step 0: source web: {what}, the vocabulary is 0 to 4,095. {ADVICE}\n"
