"""A run of Lightning's Trainer by the plan of the current folder, for a test or as a rank of its own."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import LlamaForCausalLM

from tests.support.loops import three_stages
from trivium.adapters.lightning import StageCallback, StagedDataModule


class Tiny(LightningModule):
    """A Llama of transformers; keeps the loss of every step."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.model = LlamaForCausalLM.from_pretrained("base")
        self.lr = lr
        self.losses: dict[int, float] = {}
        self.stages: list[str] = []

    def on_stage_start(self, stage: Any) -> None:
        self.stages.append(stage.name)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.model(**batch).loss
        gathered: Any = self.all_gather(loss.detach())
        mean = gathered.mean().item() / self.trainer.accumulate_grad_batches
        step = self.trainer.global_step + 1
        self.losses[step] = self.losses.get(step, 0.0) + mean
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, betas=(0.9, 0.95), weight_decay=0.0)


def fit(folder: str, *overrides: str, resume: str | None = None, **options: Any) -> Tiny:
    """Train run.toml's plan, and keep the checkpoint of step 7."""
    plan = three_stages("model={ init = 'base' }", *overrides)
    module = Tiny(plan.peak_lr["rest"])
    keep = ModelCheckpoint(dirpath=folder, every_n_train_steps=7, filename="{step}", save_top_k=-1)
    given: dict[str, Any] = {"accumulate_grad_batches": 2, "max_steps": 13, "callbacks": [StageCallback(plan), keep]}
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(accelerator="cpu", gradient_clip_val=1.0, **quiet, **(given | options))
    trainer.fit(module, StagedDataModule(plan), ckpt_path=resume, weights_only=False)
    return module


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ranked = fit(sys.argv[1], resume=sys.argv[2], devices=2, strategy="ddp")
    if ranked.global_rank == 0:
        Path(sys.argv[1], "losses.json").write_text(json.dumps(ranked.losses))
