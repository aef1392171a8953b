"""NousResearch's multi-stage configs for torchtitan run as they are, given a folder of text for c4_test.

The three files have the keys and values of those in the pull request that the form comes from.
"""

import json
from pathlib import Path

import pytest
import tokenizers

from tests.support.command_line import trivium
from tests.support.events import steps_taken
from trivium.run.events import read_events
from trivium.run.folder import RunFolder
from trivium.train.trainer import Trainer

# Narrower than their debug model, so that fifteen steps take a second; everything else as it is.
SMALL = ["model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64", "engine.device=cpu"]

COMMON = """
[job]
dump_folder = "./outputs/{name}"
description = "a test of data stages"

[profiling]
enable_profiling = false

[metrics]
log_freq = 1
enable_tensorboard = false
enable_wandb = false

[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"

[optimizer]
name = "AdamW"
lr = 8e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 2

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
context_parallel_degree = 1

[activation_checkpoint]
mode = "none"

[compile]
enable = false

[debug]
seed = 42

"""
SAVES = """
[checkpoint]
enable = true
folder = "checkpoint"
interval = 1
last_save_model_only = false
async_mode = "disabled"
"""
DATA = 'dataset = "c4_test"\ndataset_type = "huggingface"\nseq_len = 512\n'
TRAINING = "[training]\nlocal_batch_size = 2\nmax_norm = 1.0\n"
BACKCOMPAT = f"{TRAINING}steps = 5\n{DATA}\n[checkpoint]\nenable = false\n"
STAGES = f"""{TRAINING}steps = 15

[[training.data_stages]]
name = "stage_1_general"
start_step = 0
end_step = 5
dataset_random_seed = 1111
{DATA}
[[training.data_stages]]
name = "stage_2_reasoning"
start_step = 5
end_step = 10
dataset_random_seed = 2222
{DATA}
[[training.data_stages]]
name = "stage_3_final"
start_step = 10
dataset_random_seed = 3333
{DATA}{SAVES}"""
ABLATION = f"""{TRAINING}steps = 10
{DATA}
[[training.data_stages]]
name = "ablation_stage"
start_step = 5
dataset_random_seed = 9999
{DATA}{SAVES}"""
pytestmark = pytest.mark.slow

FILES = {
    "data_stages_backcompat_test": BACKCOMPAT,
    "data_stages_test": STAGES,
    "data_stages_ablation_test": ABLATION,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The three files, a text of ours in the place of c4_test, and a tokenizer in the place of theirs."""
    texts = [f"The heron at {number} waits for the tide, and the tide for the moon. " * 9 for number in range(120)]
    assets = tmp_path / "tests" / "assets"
    (assets / "c4_test").mkdir(parents=True)
    (assets / "c4_test" / "data.json").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    learner = tokenizers.trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, vocab_size=300)
    inner.train_from_iterator(texts, learner)
    (assets / "tokenizer").mkdir()
    inner.save(str(assets / "tokenizer" / "tokenizer.json"))
    for name, text in FILES.items():
        (tmp_path / f"{name}.toml").write_text(COMMON.format(name=name) + text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIVIUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return tmp_path


def train(name: str, *overrides: str) -> Path:
    """Train one of the files to its end; the run's folder."""
    trainer = Trainer(f"{name}.toml", [*SMALL, *overrides], show=False).run()
    assert trainer.finished
    return trainer.folder.path


def transitions(run: Path) -> list[tuple[int, str]]:
    return [(event["step"], event["name"]) for event in read_events(run / "events.jsonl") if event["event"] == "stage"]


def losses(run: Path) -> dict[int, float]:
    return {step: event["loss"] for step, event in steps_taken(run / "events.jsonl").items()}


def test_without_stages_there_is_one_called_default() -> None:
    run = train("data_stages_backcompat_test")
    differs = json.loads((run / "plan.json").read_text())["differs"]
    assert not any("taken as 1 rank" in note for note in differs)  # a launch knows its ranks
    assert run == Path("outputs/data_stages_backcompat_test/data_stages_backcompat_test")
    assert transitions(run) == [(0, "default")]
    assert sorted(losses(run)) == [1, 2, 3, 4, 5]


def test_three_stages_change_at_steps_5_and_10_and_a_resume_at_7_gives_the_same_losses() -> None:
    run = train("data_stages_test")
    assert transitions(run) == [(0, "stage_1_general"), (5, "stage_2_reasoning"), (10, "stage_3_final")]
    stages = [event["stage"] for event in steps_taken(run / "events.jsonl").values()]
    assert stages == ["stage_1_general"] * 5 + ["stage_2_reasoning"] * 5 + ["stage_3_final"] * 5
    saves = [
        (event["step"], event["reason"]) for event in read_events(run / "events.jsonl") if event["event"] == "saved"
    ]
    reasons = {5: "boundary", 10: "boundary", 15: "final"}
    assert saves == [(step, reasons.get(step, "cadence")) for step in range(1, 16)]  # each of them once
    whole = losses(run)
    RunFolder(run).keep_only([7])
    (run / "events.jsonl").unlink()
    assert losses(train("data_stages_test")) == {step: whole[step] for step in range(8, 16)}


def test_the_ablation_forks_as_it_is_from_a_run_without_stages() -> None:
    """The gap before the stage is the stage "default"; the fork takes it from the run that it is an ablation of."""
    longer = ["stages.default.steps=10", "checkpoint.every=5", "run.name=plain"]
    plain = train("data_stages_backcompat_test", *longer)
    fork = ["fork", str(plain), "data_stages_ablation_test.toml", *SMALL, "--at", "5"]
    code, _, err = trivium(Path(), *fork, "--world-size", "2", "--dialect", "torchtitan")
    assert code != 0
    assert "stages[0].batch_size was 2 and is now 4" in err
    _, out, _ = trivium(Path(), *fork, "run.name=other", "--world-size", "1", "--dialect", "torchtitan")
    assert out.endswith(" run.name=other --dialect torchtitan --world-size 1\n")
    code, out, err = trivium(Path(), *fork)
    ablation = Path("outputs/data_stages_ablation_test/data_stages_ablation_test")
    assert (code, err) == (0, "")
    assert out.startswith(f"{ablation}: forked from {plain} at step 5. Continue with: trivium train")
    assert train("data_stages_ablation_test") == ablation
    assert transitions(ablation) == [(5, "ablation_stage")]
    forked, before = losses(ablation), losses(plain)
    assert sorted(forked) == [6, 7, 8, 9, 10]
    assert forked[6] != before[6]
    whole = train("data_stages_ablation_test", "run.name=whole")
    assert transitions(whole) == [(0, "default"), (5, "ablation_stage")]
    assert losses(whole) == {step: before[step] if step <= 5 else forked[step] for step in range(1, 11)}
