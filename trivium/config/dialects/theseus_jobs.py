"""theseus's jobs: which of their names trains a model that is known here, under which schedule, by which keys.

A key that a job's trainer does not read decides nothing there, and so nothing here.
"""

from dataclasses import dataclass
from typing import Literal

from trivium.config.dialects.translation import Theirs
from trivium.config.keys import Path
from trivium.config.problems import show_value


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
    """What a job trains, its trainer's schedule, and which of the keys that only some trainers read it reads."""

    model: Literal["gpt", "llama", "qwen", "backbone", "refused"]
    schedule: Literal["wsd", "wsds"]
    reads: tuple[Path, ...] = ()
    has_five_stages: bool = False  # where tokens and datasets are not written

    @property
    def sizes(self) -> Sizes:
        return SIZES[self.model]


SIZES = {
    "gpt": Sizes(heads=16, ffn=-1, vocab=100_288, theta=10_000.0, tied=True),
    "llama": Sizes(heads=32, ffn=11_008, vocab=32_000, theta=10_000.0, tied=False),
    "qwen": Sizes(heads=32, ffn=22_016, vocab=151_936, theta=1e6, tied=False),
}
FADE, KL = ("training", "fade"), ("optimization", "kl")
RESET, SCHEDULE = ("optimization", "reset_optimizer"), ("optimization", "schedule")
READ_BY_SOME: tuple[Path, ...] = (FADE, KL, RESET, SCHEDULE)
JOBS = {
    "gpt/train/pretrain": Job("gpt", "wsd"),
    "continual/train/benchmark": Job("gpt", "wsd", (FADE, RESET), has_five_stages=True),
    "continual/train/abcd": Job("gpt", "wsds", (FADE,), has_five_stages=True),
    "continual/train/abcd_kl": Job("gpt", "wsds", (FADE, KL), has_five_stages=True),
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
    """The job; without a name it is a GPT whose trainer is not known: all keys are read, and suggest its schedule.

    Of a job that is refused, the keys that describe its model are not looked at.
    """
    name = theirs.take("job")
    if name is None:
        suggests = any(theirs.has("optimization", key) for key in ("constant_pct", "decay_lr_mult", "kl"))
        return Job("gpt", "wsds" if suggests else "wsd", READ_BY_SOME)
    job = JOBS.get(name) if isinstance(name, str) else None
    if job is None:
        reason = next((why for part, why in OTHERS.items() if part in str(name)), "It is not a job that is known here.")
        what = f"is {show_value(name)}. {reason} For a dense decoder write one of {', '.join(JOBS)}."
        theirs.problem(("job",), what)
        return Job("refused", "wsd", READ_BY_SOME)
    for table, key in (FADE, KL, RESET):
        if (table, key) not in job.reads:
            theirs.without_effect({key: f"the trainer of {name} does not read it"}, table)
    return job
