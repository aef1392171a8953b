"""theseus's jobs: the models that are known here, those that are refused, and the keys that a job's trainer reads."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.dialects import notes as all_notes
from tests.support.theseus import GPT_NOTE, LLAMA, OURS, load, notes, refusal, written
from trivium.config.dialects.theseus_jobs import JOBS


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_job_with_a_known_model_is_taken(file: Path, job: str) -> None:
    more: dict[str, Any] = {"optimization__kl__betas": [0.0, 0.1]} if job.endswith("kl") else {}
    if job.endswith("finetune"):
        more = {"architecture__backbone": {"implementation": "llama", "weights": "weights/llama"}}
    elif job.startswith(("llama", "qwen")):
        more = LLAMA
    is_gpt = JOBS[job].model == "gpt"
    overrides = OURS if is_gpt else ()
    raw = load(written(file, **(more | {"job": job})), overrides).raw
    if job.endswith("finetune"):
        assert raw["model"] == {"init": "weights/llama"}
    else:
        assert raw["model"]["tied_embeddings"] is is_gpt
    assert (GPT_NOTE in all_notes(file, overrides=overrides)) is is_gpt


@pytest.mark.parametrize(("job", "what"), [("gpt/train/pretrain", "is"), (None, "is absent, which is")])
def test_a_gpt_asks_for_a_model_of_ours_and_gives_its_sizes(file: Path, job: str | None, what: str) -> None:
    written(file, job=job, architecture__bias=True, architecture__layer_norm_eps=1e-5, architecture__vocab_size=512)
    gpt = f"job: {what} a GPT there: LayerNorm, an ungated GELU and biases, which are not built here."
    sizes = ["model.layers=4", "model.width=256", "model.heads=4"]
    assert refusal(file, ()) == [
        f"{gpt} For our decoder in its sizes add {' '.join(sizes)}; for another, model.size=125m."
    ]
    kept = {"vocab": 512, "max_seq_len": 512, "tied_embeddings": True}
    assert load(file, sizes).raw["model"] == {**kept, "layers": 4, "width": 256, "heads": 4}
    assert load(file).raw["model"] == {**kept, "size": "tiny"}
    assert not any("same sizes" in note for note in all_notes(file, overrides=OURS))
    assert "architecture/bias: has no effect here (it is true): the overrides give a model without it." in notes(file)


def test_a_gpt_has_their_default_sizes_where_none_are_written(file: Path) -> None:
    sizes = dict.fromkeys(("architecture__n_embd", "architecture__n_layers", "architecture__n_head"))
    (said,) = refusal(written(file, **sizes, architecture__intermediate_size=5000), ())
    assert "add model.layers=32 model.width=2048 model.heads=16 model.ffn=5000;" in said


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("continual/train/benchmark_mamba", "Mamba layers are not built here."),
        ("continual/train/benchmark_hybrid", "Mamba layers are not built here."),
        ("continual/train/benchmark_lact", "LaCT layers are not built here."),
        ("lact/train/pretrain", "LaCT layers are not built here."),
        ("continual/train/benchmark_moe", "Experts are not built here."),
        ("moe/train/pretrain", "Experts are not built here."),
        ("thoughtbubbles/train/pretrain", "Layers that fork are not built here."),
        ("scratchbubbles/train/pretrain", "Layers that fork are not built here."),
        ("gpt_neox/train/pretrain", "GPT-NeoX layers are not built here."),
        ("continual/train/benchmark_lora", "LoRA is not built here."),
        ("continual/train/benchmark_lact_lora", "LoRA is not built here."),
        ("qwen/rl/grpo", "Rewards are not trained here."),
        ("backbone/evaluate", "It scores a model, which is trivium eval here."),
        ("data/tokenize_variable_dataset", "It prepares data, which is trivium prepare here."),
        ("my/own/job", "It is not a job that is known here."),
    ],
)
def test_a_job_with_another_model_is_refused_by_name(file: Path, job: str, why: str) -> None:
    known = ", ".join(JOBS)
    assert refusal(written(file, job=job)) == [f'job: is "{job}". {why} For a dense decoder write one of {known}.']


def test_a_llama_has_its_own_sizes_norms_and_positions(file: Path) -> None:
    keys = {"n_kv_head": 2, "intermediate_size": 512, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "attention_bias": False}
    written(file, job="llama/train/pretrain", **{f"architecture__{key}": value for key, value in keys.items()})
    assert load(file, ()).raw["model"] == {
        "vocab": 32_000,
        "max_seq_len": 512,
        "tied_embeddings": False,
        "norm_eps": 1e-5,
        "rope": {"theta": 5e5},
        "layers": 4,
        "width": 256,
        "heads": 4,
        "ffn": 512,
        "kv_heads": 2,
    }


def test_a_llama_writes_what_its_layers_have_by_default(file: Path) -> None:
    bias = (
        "architecture/attention_bias: is missing, and attention there has biases unless it is false. "
        "Write attention_bias: false."
    )
    theta = (
        "architecture/rope_theta: is missing: a Llama's is 10000 there, but its attention takes 1000000. "
        "Write rope_theta: 1000000.0."
    )
    assert refusal(written(file, job="llama/train/pretrain"), ()) == [bias, theta]
    assert refusal(written(file, job="qwen/train/pretrain"), ()) == [bias]
    written(file, job="qwen/train/pretrain", architecture__attention_bias=False)
    assert load(file, ()).raw["model"]["rope"] == {"theta": 1e6}


UNREAD: list[tuple[str, dict[str, Any], str]] = [
    ("continual/train/benchmark", {"optimization__kl": {"beta": 0.5}}, "optimization/kl"),
    ("continual/train/abcd", {"optimization__kl": {"betas": [0.0, 0.5]}}, "optimization/kl"),
    ("continual/train/abcd", {"optimization__reset_optimizer": True}, "optimization/reset_optimizer"),
    ("continual/train/abcd_kl", {"optimization__reset_optimizer": True}, "optimization/reset_optimizer"),
    ("gpt/train/pretrain", {"optimization__reset_optimizer": True}, "optimization/reset_optimizer"),
    ("gpt/train/pretrain", {"training__fade": {"overlap": 0.5}}, "training/fade"),
    ("llama/train/pretrain", {"training__fade": {"overlap": 0.5}}, "training/fade"),
    ("llama/train/pretrain", {"optimization__kl": {"beta": 0.5}}, "optimization/kl"),
]


@pytest.mark.parametrize(("job", "keys", "key"), UNREAD)
def test_a_key_that_a_jobs_trainer_does_not_read_decides_nothing(
    file: Path, job: str, keys: dict[str, Any], key: str
) -> None:
    more: dict[str, Any] = {"optimization__kl__betas": [0.0, 0.1]} if job.endswith("kl") else {}
    if job.startswith("llama"):
        more = LLAMA
    overrides = () if job.startswith("llama") else OURS
    without = load(written(file, **(more | {"job": job})), overrides).raw
    assert load(written(file, **(more | {"job": job} | keys)), overrides).raw == without
    (said,) = [note for note in all_notes(file, overrides=overrides) if note.startswith(f"{key}: has no effect here")]
    assert said.endswith(f": the trainer of {job} does not read it.")


def test_a_continual_job_has_five_stages_where_none_are_written(file: Path) -> None:
    written(file, job="continual/train/abcd_kl", training__tokens=None, training__dataset=None)
    stages = load(file).raw["stages"]
    assert [[*stage["mixture"]] for stage in stages] == [["fineweb"], ["mnli"], ["qqp"], ["sst2"], ["siqa"]]
    assert [stage.get("kl", {}).get("beta", 0) for stage in stages] == [0, 0.1, 0.1, 0.1, 0.1]
    assert [stage["steps"] for stage in stages] == [244_141, 24_414, 24_414, 24_414, 24_413]


def test_a_job_that_is_refused_hides_no_other_problem_and_is_not_refused_twice(file: Path) -> None:
    keys = {"architecture__d_state": 4, "optimization__lora": {"rank": 2}, "optimization__odd": 3}
    written(file, job="continual/train/benchmark_mamba_lora", training__batch_size=0, **keys)
    for overrides in (OURS, ()):
        assert [said.split(":")[0] for said in refusal(file, overrides)] == [
            "job",
            "training/batch_size",
            "optimization/odd",
        ]


def test_a_model_without_sizes_asks_for_one_on_the_command_line(file: Path) -> None:
    written(file, **LLAMA, architecture__n_embd=None)
    said = "architecture: has no n_embd and n_layers. Give a size on the command line: model.size=125m."
    assert refusal(file, ()) == [said]
    assert load(file).config.model.size == "tiny"
