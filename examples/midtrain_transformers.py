"""Midtraining of models of transformers: from a folder, through two stages, back into a folder that transformers reads.

    python examples/midtrain_transformers.py

in the repository's root. Takes less than a minute on a CPU. Two tiny models with random weights stand for real ones: an
Olmo 3, with sliding layers, and an OLMoE, whose experts are kept in balance by a loss of their own.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trivium.ask.export import export_checkpoint
from trivium.ask.open import open_model
from trivium.train.trainer import Trainer

CONFIG = "examples/transformers.toml"
SIZES = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 266,
    "max_position_embeddings": 256,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
MODELS: dict[str, dict[str, Any]] = {
    "olmo3": {"sliding_window": 64},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}
PROMPT = "The old mill"
NEW_TOKENS = 24


def main() -> None:
    """Both models, one after the other."""
    for family, keys in MODELS.items():
        start, run, out = Path("examples/data") / family, Path("runs") / family, Path("exports") / family
        make_checkpoint(family, keys, start)
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
        Trainer(CONFIG, [f"run.name={family}", f"model.init={start}"], show=False).run()
        export_checkpoint(run, out)
        ours, theirs = written_by_trivium(run), written_by_transformers(out)
        assert ours == theirs, f"trivium writes {ours} and transformers {theirs}"
        print(f"{family}: {last_figures(run)}; trivium and transformers write the same {NEW_TOKENS} tokens")


def make_checkpoint(family: str, keys: dict[str, Any], folder: Path) -> None:
    """A model with random weights, as transformers saves it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **keys))
    model.save_pretrained(folder)


def last_figures(run: Path) -> str:
    """What the last step of a run reported."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "step"][-1]
    balance = last["extra"].get("balance_loss")
    return f"loss {last['loss']:.3f}" + ("" if balance is None else f", balance_loss {balance:.4f}")


def written_by_trivium(run: Path) -> list[int]:
    """The likeliest tokens after the prompt, from the run's last checkpoint."""
    engine = open_model(run).engine
    rows = engine.generation([np.frombuffer(PROMPT.encode(), np.uint8).astype(np.int64)], NEW_TOKENS)
    written = []
    for _ in range(NEW_TOKENS):
        written.append(int(rows.logits()[0].argmax()))
        rows.append(np.array(written[-1:]))
    return written


def written_by_transformers(folder: Path) -> list[int]:
    """The same from what was exported."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokens = torch.tensor([list(PROMPT.encode())])
    how = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written = model.generate(tokens, attention_mask=torch.ones_like(tokens), **how)
    return list(written[0, tokens.shape[1] :].tolist())


if __name__ == "__main__":
    main()
