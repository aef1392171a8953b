"""OLMo-core's Trainer by the plan of the current folder, whole and resumed; prints what each found, as JSON."""

import json
from typing import Any

import torch
from olmo_core.config import DType
from olmo_core.nn.feed_forward import FeedForwardConfig
from olmo_core.nn.hf.checkpoint import load_hf_model
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerTrainModuleConfig

from tests.support.loops import hash_rows, three_stages
from trivium.adapters.olmo_core import PlanScheduler, StagedDataLoader
from trivium.errors import PlanError, ResumeError
from trivium.plan.plan import Plan

# Attention within documents needs a kernel of GPUs there.
JOINED = tuple(f"stages.{stage}.document_mask=false" for stage in ("one", "two"))


class Kept(Callback):  # type: ignore[misc]
    """Keeps losses, learning rates and rows by step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.rows: dict[int, list[str]] = {}

    def pre_step(self, batch: dict[str, Any]) -> None:
        self.rows[self.step] = hash_rows(batch["input_ids"])

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if "train/CE loss" in metrics:
            self.losses[step] = metrics["train/CE loss"]
            self.rates[step] = metrics["optim/LR (group 0)"]


def train(plan: Plan, folder: str, resume: str | None = None) -> Kept:
    """From the weights in `base`, or from a checkpoint."""
    ffn = FeedForwardConfig(hidden_size=64, bias=False, dtype=DType.float32)
    shape: dict[str, Any] = {"d_model": 32, "vocab_size": 512, "n_layers": 1, "n_heads": 2}
    model = TransformerConfig.llama_like(**shape, rope_theta=10_000, feed_forward=ffn).build(init_device="cpu")
    optim = AdamWConfig(lr=plan.peak_lr["rest"], betas=(0.9, 0.95), weight_decay=0.0)
    sizes = {"rank_microbatch_size": 64, "max_sequence_length": 32, "max_grad_norm": 1.0}
    module = TransformerTrainModuleConfig(**sizes, optim=optim, scheduler=PlanScheduler(plan=plan)).build(model)
    weights = module.model.state_dict()  # a module draws its weights when it is built
    load_hf_model("base", weights)
    module.model.load_state_dict(weights)
    how = {"max_duration": Duration.steps(plan.total_steps), "metrics_collect_interval": 1, "save_overwrite": True}
    config = TrainerConfig(save_folder=folder, **how).with_callback("kept", Kept())
    # A checkpoint before the first step makes torch take an empty step of the optimizer, which counts in Adam's decay.
    config = config.with_callback("checkpointer", CheckpointerCallback(save_interval=7, pre_train_checkpoint=False))
    trainer = config.build(module, StagedDataLoader(plan, work_dir="work"))
    if resume is not None:
        trainer.load_checkpoint(resume)
    trainer.fit()
    kept: Kept = trainer.callbacks["kept"]  # a copy of the one above
    return kept


def after_a_resume_on_two_ranks(plan: Plan) -> list[list[str]]:
    """Rows of all ranks from step 7 on."""
    loader = StagedDataLoader(plan, work_dir="work")
    loader.reshuffle(1)
    for _, _batch in zip(range(7), loader, strict=False):
        state = loader.state_dict()
    halves = []
    for rank in range(2):
        half = StagedDataLoader(plan, work_dir="work", dp_world_size=2, dp_rank=rank)
        half.load_state_dict(state)
        half.reshuffle(1)
        assert half.global_batch_size == 128
        halves.append([hash_rows(batch["input_ids"]) for batch in half])
    return [one + other for one, other in zip(*halves, strict=True)]


def refusals(plan: Plan) -> list[str]:
    """What is refused, in words."""
    loader = StagedDataLoader(plan, work_dir="work")
    other = three_stages(*JOINED, "stages.one.mixture={ web = 1.0 }")
    said = []
    for act in (
        lambda: loader.reshuffle(2),
        lambda: setattr(loader, "global_batch_size", 64),
        lambda: StagedDataLoader(other, work_dir="work").load_state_dict(loader.steps.loader.state_at(7)),
        lambda: StagedDataLoader(three_stages("stages.two.z_loss=1e-4"), work_dir="work"),
    ):
        try:
            act()
        except (PlanError, ResumeError) as error:
            said.append(str(error))
    return said


def documents(plan: Plan) -> list[Any]:
    """The lengths of the documents of a step whose rows keep them apart, and the shape of a mock batch."""
    loader = StagedDataLoader(plan, work_dir="work")
    batch = next(iter(loader))
    mock = loader.get_mock_batch()
    return [batch["doc_lens"].sum(1).tolist(), batch["max_doc_lens"], list(mock["input_ids"].shape)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    prepare_training_environment(seed=0, backend=None)
    planned = three_stages("model={ init = 'base' }", *JOINED)
    whole, again = train(planned, "olmo"), train(planned, "again", resume="olmo/step7")
    found = {
        "losses": whole.losses,
        "rates": whole.rates,
        "rows": whole.rows,
        "again": again.losses,
        "two_ranks": after_a_resume_on_two_ranks(planned),
        "refusals": refusals(three_stages(*JOINED)),
        "documents": documents(three_stages()),
    }
    print(json.dumps(found))  # noqa: T201
