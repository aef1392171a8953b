"""theseus's jobs: which of their names trains a decoder that is known here, of which sizes, under which schedule."""

from dataclasses import dataclass
from typing import Literal

from trivium.config.dialects.translation import Theirs
from trivium.config.problems import show_value
from trivium.errors import ConfigError, Problem

GPT_NOTE = (
    "trains a GPT there: LayerNorm, an ungated GELU and biases; here, in the same sizes, RMSNorm, a gated SiLU "
    "and no biases."
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's sizes where the config does not write them."""

    heads: int
    ffn: int
    vocab: int
    theta: float
    tied: bool


@dataclass(frozen=True, slots=True)
class Job:
    """What a job trains, and the schedule that it has unless the config names another."""

    model: Literal["gpt", "llama", "qwen", "backbone"]
    schedule: Literal["wsd", "wsds"]

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.model]


SIZES = {
    "gpt": Sizes(heads=16, ffn=-1, vocab=100_288, theta=10_000.0, tied=True),
    "llama": Sizes(heads=32, ffn=11_008, vocab=32_000, theta=10_000.0, tied=False),
    "qwen": Sizes(heads=32, ffn=22_016, vocab=151_936, theta=1e6, tied=False),
}
JOBS = {
    "gpt/train/pretrain": Job("gpt", "wsd"),
    "continual/train/benchmark": Job("gpt", "wsd"),
    "continual/train/abcd": Job("gpt", "wsds"),
    "continual/train/abcd_kl": Job("gpt", "wsds"),
    "llama/train/pretrain": Job("llama", "wsd"),
    "llama/train/finetune": Job("backbone", "wsd"),
    "qwen/train/pretrain": Job("qwen", "wsd"),
    "qwen/train/finetune": Job("backbone", "wsd"),
}
# Parts of other jobs' names, and what is not here; the first that is found is the reason.
OTHERS = {
    "data/": "It prepares data, which is trivium prepare here.",
    "evaluate": "It scores a model, which is trivium eval here.",
    "/rl/": "Rewards are not trained here.",
    "lora": "LoRA is not built here.",
    "mamba": "Mamba layers are not built here.",
    "hybrid": "Mamba layers are not built here.",
    "lact": "LaCT layers are not built here.",
    "moe": "Experts are not built here.",
    "bubbles": "Layers that fork are not built here.",
    "gpt_neox": "GPT-NeoX layers are not built here.",
}


def job_of(theirs: Theirs) -> Job:
    """The job; without a name it is a GPT, scheduled as its keys suggest.

    Another one is refused at once, for it decides what the other keys mean.
    """
    name = theirs.take("job")
    if name is None:
        suggests = any(theirs.has("optimization", key) for key in ("constant_pct", "decay_lr_mult", "kl"))
        return Job("gpt", "wsds" if suggests else "wsd")
    job = JOBS.get(name) if isinstance(name, str) else None
    if job is None:
        reason = next((why for part, why in OTHERS.items() if part in str(name)), "It is not a job that is known here.")
        what = f"is {show_value(name)}. {reason} For a dense decoder write one of {', '.join(JOBS)}."
        raise ConfigError([Problem(theirs.where(("job",)), what)])
    if job.model == "gpt":
        theirs.differs(("job",), GPT_NOTE)
    return job
