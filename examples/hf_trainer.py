"""A Hugging Face `Trainer` that trains by a plan, through a stage with other rows and another batch size.

    python examples/hf_trainer.py

in the repository's root; needs `pip install 'trivium[hf]'`. Takes some ten seconds on a CPU.
"""

import sys
import tempfile
from pathlib import Path

import make_data
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import trivium
from trivium.adapters.huggingface import StagedTrainer

CONFIG = "examples/small.toml"


def make_trainer(folder: str) -> StagedTrainer:
    """A tiny model and the arguments that go with a plan."""
    # Stage "general" has steps of 16 rows of 256 tokens, and "long" of 4 rows of 1,024.
    config = trivium.load_config(CONFIG, overrides=["stages.general.steps=3"])
    plan = trivium.make_plan(config, prepare=True)
    torch.manual_seed(1234)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=266,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=1024,
        )
    )
    args = TrainingArguments(
        output_dir=folder,
        max_steps=6,
        gradient_accumulation_steps=2,  # micro-batches of a step: of 8 rows in "general", of 2 in "long"
        save_steps=4,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return StagedTrainer(plan, model=model, args=args)


def main() -> None:
    """Six steps in one go, and six in two goes: the same weights."""
    torch.set_num_threads(1)
    if not Path("examples/data").exists():
        make_data.write_sources(Path("examples/data"))
    with tempfile.TemporaryDirectory() as folder:
        whole = make_trainer(folder)
        whole.train()
        resumed = make_trainer(folder)
        resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-4")
        same = all(
            torch.equal(*pair) for pair in zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
        )
        print(f"{whole.state.global_step} steps; stopped at 4 and resumed: {'the same' if same else 'other'} weights")
        sys.exit(not same)


if __name__ == "__main__":
    main()
