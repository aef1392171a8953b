"""A hybrid of attention and a recurrence in torch: `model.family = "own_model.torch_hybrid:Hybrid"`.

Layers alternate. A recurrent layer remembers by h = keep * h + (1 - keep) * value, channel by channel, and forgets
everything where a document begins; so it knows where a token is, and attention needs no positions of its own.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu


class Recurrence(nn.Module):
    """A gated linear recurrence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.keep = nn.Linear(width, width)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, sees: Tensor, continues: Tensor) -> Tensor:
        """`continues` (rows, slots) is false where a document begins: nothing is kept from before it."""
        y = self.norm(x)
        keep = torch.sigmoid(self.keep(y)) * continues[..., None]
        return x + self.out(silu(scan(keep, (1 - keep) * self.value(y))))


def scan(keep: Tensor, new: Tensor) -> Tensor:
    """h[t] = keep[t] * h[t - 1] + new[t] along the slots, by doubling: log2(slots) passes instead of a loop."""
    shift = 1
    while shift < new.shape[1]:
        new = torch.cat([new[:, :shift], new[:, shift:] + keep[:, shift:] * new[:, :-shift]], dim=1)
        keep = torch.cat([keep[:, :shift], keep[:, shift:] * keep[:, :-shift]], dim=1)
        shift *= 2
    return new


class Attention(nn.Module):
    """Causal attention within documents, without positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, sees: Tensor, continues: Tensor) -> Tensor:
        """`sees` (rows, slots, slots) says which keys a query sees."""
        rows, slots, width = x.shape
        parts = self.mix(self.norm(x)).view(rows, slots, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, attn_mask=sees[:, None])
        return x + self.out(found.transpose(1, 2).reshape(rows, slots, width))


class Hybrid(nn.Module):
    """Recurrent layers, and attention in every second one."""

    def __init__(self, spec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.padded_vocab, spec.width)
        self.layers = nn.ModuleList(
            Attention(spec.width, spec.heads) if number % 2 else Recurrence(spec.width) for number in range(spec.layers)
        )
        self.norm = nn.RMSNorm(spec.width, eps=1e-6)
        self.lm_head = nn.Linear(spec.width, spec.padded_vocab, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        slots = torch.arange(tokens.shape[1], device=tokens.device)
        sees = (documents[:, :, None] == documents[:, None]) & (slots[:, None] >= slots)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, sees, positions > 0)
        return self.norm(x)

    def init_weight(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor | None:
        """Memories of many lengths, from 2 tokens to 50; everything else by trivium's rule."""
        return torch.linspace(0, 4, shape[0]) if name.endswith("keep.bias") else None


def smoothed(hidden: Tensor, lm_head: Tensor, batch) -> Tensor:
    """Cross-entropy with smoothed labels: `loss = "own_model.torch_hybrid:smoothed"` in a stage."""
    return cross_entropy((hidden @ lm_head.T).float(), batch.targets, reduction="none", label_smoothing=0.1)
