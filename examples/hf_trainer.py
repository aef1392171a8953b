"""A plan's batches as the `train_dataloader` of a Hugging Face `Trainer`.

    python examples/hf_trainer.py

in the repository's root; needs transformers and accelerate. Takes some ten seconds on a CPU.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_data
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import trivium

CONFIG = "examples/small.toml"


class Batches:
    """A plan's steps, each in micro-batches, from the trainer's own step on."""

    def __init__(self, loader: trivium.Loader, trainer: Trainer, micro_batch: int) -> None:
        self.loader, self.trainer, self.micro_batch = loader, trainer, micro_batch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _, batch in self.loader.batches(start=self.trainer.state.global_step):
            for first in range(0, batch.num_rows, self.micro_batch):
                rows = batch.rows(first, first + self.micro_batch)
                targets = torch.from_numpy(rows.targets).long()
                yield {
                    "input_ids": torch.from_numpy(rows.tokens).long(),
                    # Positions restart with each document; without an attention mask that is how the
                    # models of transformers tell documents apart.
                    "position_ids": torch.from_numpy(rows.positions).long(),
                    # Targets are next tokens already: `shift_labels` keeps the loss from shifting them again.
                    "labels": targets,
                    "shift_labels": targets,
                }


class StagedTrainer(Trainer):
    """A Trainer that reads a plan."""

    def __init__(self, plan: trivium.Plan, **options: Any) -> None:
        super().__init__(**options)
        self.plan = plan

    def get_train_dataloader(self) -> Any:
        """This rank's shard of every step; nothing for accelerate to split or skip."""
        ranks = self.accelerator
        loader = trivium.Loader(self.plan, ranks.process_index, ranks.num_processes)
        return Batches(loader, self, self.args.per_device_train_batch_size)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The plan's learning rate, as a multiplier of `learning_rate`."""
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, self._multiplier)
        return self.lr_scheduler

    def _multiplier(self, step: int) -> float:
        return self.plan.lr_multiplier(min(step, self.plan.known_steps - 1))


def make_trainer(folder: str, steps: int) -> StagedTrainer:
    """A tiny model and the arguments that go with a plan."""
    # A Trainer takes as many rows in every step, so every stage must have the same batch size.
    plan = trivium.make_plan(trivium.load_config(CONFIG, overrides=["stages.long.batch_size=16"]), prepare=True)
    (batch_size,) = {stage.batch_size for stage in plan.stages}
    micro_batch, ranks = 4, int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(1234)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=257,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=1024,
        )
    )
    options = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=batch_size // (micro_batch * ranks),
        learning_rate=plan.peak_lr["rest"],
        ignore_data_skip=True,  # the loader starts at any step: nothing is read to be thrown away
        save_steps=3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    return StagedTrainer(plan, model=model, args=options)


def main() -> None:
    """Six steps in one go, and six in two goes: the same weights."""
    torch.set_num_threads(1)
    if not Path("examples/data").exists():
        make_data.write_sources(Path("examples/data"))
    with tempfile.TemporaryDirectory() as folder:
        whole = make_trainer(f"{folder}/whole", steps=6)
        whole.train()
        resumed = make_trainer(f"{folder}/whole", steps=6)
        resumed.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-3")
        same = all(
            torch.equal(*pair) for pair in zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
        )
        print(f"{whole.state.global_step} steps; stopped at 3 and resumed: {'the same' if same else 'other'} weights")
        sys.exit(not same)


if __name__ == "__main__":
    main()
