"""A plain torch loop over a plan: batches, document masks, learning rate, stop and resume.

    python examples/torch_loop.py

in the repository's root. Takes a few seconds on a CPU.
"""

from pathlib import Path

import make_data
import torch
from torch import Tensor, nn
from torch.nn import functional

import trivium

CONFIG = "examples/small.toml"
VOCAB, WIDTH, HEADS = 257, 64, 2


class Layer(nn.Module):
    """Attention within documents, then a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """One layer."""
        query, key, value = self.heads(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.ffn(self.after(x))


class Model(nn.Module):
    """A decoder of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(1024, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.logits = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Logits for every slot; a token sees what came before it in its own document."""
        same = segments[:, None, :, None] == segments[:, None, None, :]
        mask = same & torch.ones_like(same).tril()
        x = self.token(tokens) + self.position(positions)
        for layer in self.layers:
            x = layer(x, mask)
        logits: Tensor = self.logits(x)
        return logits


def train(model: Model, loader: trivium.Loader, until: int) -> float:
    """Take steps from the loader's current one on; returns the last loss."""
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.zeros(())
    for step, batch in loader.batches():
        for group in optimizer.param_groups:
            group["lr"] = loader.plan.settings_at(step).lr["rest"]
        tokens, targets, segments, positions = (
            torch.from_numpy(array) for array in (batch.tokens, batch.targets, batch.segments, batch.positions)
        )
        logits = model(tokens, positions, segments)
        # Summed over tokens, divided by the number that count in the loss; cross_entropy ignores -100.
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.long().flatten(), reduction="sum")
        loss = loss / max(1, batch.loss_tokens())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == until:
            break
    return loss.item()


def main() -> None:
    """Six steps, a stop, and six more that start where the first ones ended."""
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    if not Path("examples/data").exists():
        make_data.write_sources(Path("examples/data"))
    plan = trivium.make_plan(trivium.load_config(CONFIG), prepare=True)
    model = Model()

    loader = trivium.Loader(plan)
    loss = train(model, loader, until=6)
    print(f"after {loader.step} steps: loss {loss:.2f}")
    saved = loader.state_dict()  # plain values: json, torch.save, whatever keeps your checkpoint

    loader = trivium.Loader(plan)
    loader.load_state_dict(saved)
    print(f"resuming at step {loader.step}, stage {saved['stage_name']}")
    loss = train(model, loader, until=12)
    print(f"after {loader.step} steps: loss {loss:.2f}")


if __name__ == "__main__":
    main()
