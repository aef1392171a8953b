"""A run of the Hugging Face Trainer by the plan of the current folder, for a test or as a rank of its own."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, TrainingArguments

from tests.support.loops import three_stages
from trivium.adapters.huggingface import StagedTrainer


def make_trainer(folder: str, *overrides: str, **options: Any) -> StagedTrainer:
    """A StagedTrainer with the optimizer of run.toml, from the weights in `base`."""
    given: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "save_steps": 7,
        "logging_steps": 1,
        "weight_decay": 0.0,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    args = TrainingArguments(output_dir=folder, **(given | options))
    plan = three_stages("model={ init = 'base' }", *overrides)
    return StagedTrainer(plan, model=LlamaForCausalLM.from_pretrained("base"), args=args)


def logged(trainer: StagedTrainer) -> dict[int, float]:
    """The loss of each step, as it was logged."""
    return {int(entry["step"]): entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranked = make_trainer(sys.argv[1])
    ranked.train(resume_from_checkpoint=sys.argv[2])
    if ranked.is_world_process_zero():
        Path(sys.argv[1], "losses.json").write_text(json.dumps(logged(ranked)))
