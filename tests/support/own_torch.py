"""Models, losses and trainers of one's own in plain torch, as a user would write them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from tests.support.training import StoppingTrainer
from trivium.engine.base import LossBatch
from trivium.model.spec import ModelSpec
from trivium.train.trainer import Trainer


class Block(nn.Module):
    """Attention and feed-forward with biases, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, sees: Tensor) -> Tensor:
        parts = self.mix(self.ln1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        gathered = scaled_dot_product_attention(query, key, value, attn_mask=sees[:, None])
        x = x + self.out(gathered.transpose(1, 2).flatten(2))
        moved: Tensor = x + self.down(gelu(self.up(self.ln2(x))))
        return moved


class Small(nn.Module):
    """A decoder that shares nothing with the built-in one."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.width = spec.width
        self.embedding = nn.Embedding(spec.padded_vocab, spec.width)
        self.gain = nn.Parameter(torch.ones(spec.width))
        self.layers = nn.ModuleList(Block(spec.width, spec.heads) for _ in range(spec.layers))
        self.lm_head = nn.Linear(spec.width, spec.vocab, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        """Hidden states (rows, slots, width)."""
        slots = torch.arange(tokens.shape[1], device=tokens.device)
        sees = (documents[:, :, None] == documents[:, None]) & (slots[:, None] >= slots)
        waves = positions[..., None] / 10 ** torch.linspace(0, 3, self.width, device=tokens.device)
        x: Tensor = self.embedding(tokens) + waves.sin()
        for layer in self.layers:
            x = layer(x, sees)
        return x * self.gain


def nats(hidden: Tensor, lm_head: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy((hidden @ lm_head.T).float(), targets.long(), reduction="none")


class OwnModelTrainer(StoppingTrainer):
    def model(self) -> Any:
        return Small


class NllGapTrainer(Trainer):
    """The penalty as a difference of losses, with the reference's loss held fixed."""

    def loss(self) -> Any:
        def penalised(hidden: Tensor, lm_head: Tensor, batch: LossBatch) -> Any:
            policy_loss = nats(hidden, lm_head, batch.targets)
            if batch.reference is None:
                return policy_loss
            with torch.no_grad():
                reference_loss = nats(batch.reference.hidden, batch.reference.lm_head, batch.targets)
            penalty = policy_loss - reference_loss
            return policy_loss + batch.reference.beta * penalty, {"kl": penalty, "reference_loss": reference_loss}

        return penalised


class KlTrainer(Trainer):
    """The same with the KL divergence from the reference over the whole vocabulary."""

    def loss(self) -> Any:
        def penalised(hidden: Tensor, lm_head: Tensor, batch: LossBatch) -> Any:
            policy = (hidden @ lm_head.T).float().log_softmax(-1)
            policy_loss = -policy.gather(1, batch.targets[:, None].long())[:, 0]
            if batch.reference is None:
                return policy_loss
            frozen = (batch.reference.hidden @ batch.reference.lm_head.T).float().log_softmax(-1)
            kl = (frozen.exp() * (frozen - policy)).sum(-1)
            reference_loss = -frozen.gather(1, batch.targets[:, None].long())[:, 0]
            return policy_loss + batch.reference.beta * kl, {"kl": kl, "reference_loss": reference_loss}

        return penalised
