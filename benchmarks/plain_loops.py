"""Models in loops as people write them by hand: forward, backward, clip, fused AdamW, on one fixed random batch.

Three of one size: trivium's own decoder without its Trainer, a model after nanoGPT (LayerNorm, learned
positions, GELU; without biases, dropout and tied embeddings), and the Llama of `transformers`. The first is
taken through the sliced loss that it has in training; the others through `cross_entropy` on whole logits, as
they come.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from bench_run import CLIP
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_

from trivium.engine.torch.checkpoint.weights import init_weights
from trivium.engine.torch.layers import Rotation
from trivium.engine.torch.loss import Objective
from trivium.engine.torch.model import Decoder, DeviceBatch
from trivium.model.spec import ModelSpec
from trivium.rows.batch import Batch


@dataclass(frozen=True, slots=True)
class PlainLoop:
    """A model, its loss on the fixed batch, and its optimizer."""

    model: nn.Module
    loss: Callable[[], Tensor]
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, model: nn.Module, loss: Callable[[], Tensor]) -> "PlainLoop":
        """With weight decay on matrices alone."""
        parameters = list(model.parameters())
        groups = [
            {"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.1},
            {"params": [one for one in parameters if one.dim() == 1], "weight_decay": 0.0},
        ]
        return cls(model, loss, torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True))

    def take(self, steps: int) -> None:
        """Train so many steps; each looks at its loss."""
        for _ in range(steps):
            loss = self.loss()
            loss.backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss.item()


def random_batch(vocab: int, num_rows: int, seq_len: int) -> Batch:
    """Rows of one document each; every token is learnt."""
    drawn = np.random.default_rng(0).integers(0, vocab, (num_rows, seq_len + 1), np.int32)
    positions = np.broadcast_to(np.arange(seq_len, dtype=np.int32), (num_rows, seq_len))
    one = np.zeros((num_rows, seq_len), np.int32)
    return Batch(drawn[:, :-1], drawn[:, 1:], one, positions, np.zeros(num_rows, np.int32), ("random",))


def bare_decoder(spec: ModelSpec, num_rows: int, seq_len: int) -> PlainLoop:
    """trivium's decoder with everything around it left out: the batch is tensors before the loop begins."""
    model = Decoder(spec, torch.float32)
    init_weights(model, 0)
    table = Rotation.table(spec.rope, spec.head_dim, seq_len, torch.device("cpu"))
    rows = DeviceBatch.of(random_batch(spec.vocab, num_rows, seq_len), table, False)
    objective = Objective(scale=1 / (num_rows * seq_len))

    def loss() -> Tensor:
        objective_of_batch: Tensor = model(rows, objective).objective
        return objective_of_batch

    return PlainLoop.of(model, loss)


def nanogpt(spec: ModelSpec, num_rows: int, seq_len: int) -> PlainLoop:
    """A model after nanoGPT."""
    batch = random_batch(spec.vocab, num_rows, seq_len)
    tokens, targets = (torch.tensor(array, dtype=torch.int64) for array in (batch.tokens, batch.targets))
    model = GPT(spec.vocab, seq_len, spec.layers, spec.heads, spec.width)
    return PlainLoop.of(model, lambda: cross_entropy(model(tokens).flatten(0, 1), targets.flatten()))


def transformers_llama(spec: ModelSpec, num_rows: int, seq_len: int) -> PlainLoop:
    """The Llama of `transformers` in the decoder's very shape, with the loss that it computes itself."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.width,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=seq_len,
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.train()
    tokens = torch.tensor(random_batch(spec.vocab, num_rows, seq_len).tokens, dtype=torch.int64)

    def loss() -> Tensor:
        found = model(input_ids=tokens, labels=tokens).loss
        assert isinstance(found, Tensor)
        return found

    return PlainLoop.of(model, loss)


class GPT(nn.Module):
    """Tokens (B, T) -> logits (B, T, vocab)."""

    def __init__(self, vocab: int, seq_len: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(heads, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every slot."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    @property
    def matrices(self) -> int:
        """Weights of the matrices that a token is multiplied with."""
        return sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))


class Block(nn.Module):
    """Attention, then two matrices with a GELU between them."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.gelu = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """The stream, one block on."""
        x = x + self._attend(self.attention_norm(x))
        output: Tensor = x + self.down(self.gelu(self.up(self.mlp_norm(x))))
        return output

    def _attend(self, x: Tensor) -> Tensor:
        rows, seq_len, width = x.shape
        in_heads = self.queries_keys_values(x).view(rows, seq_len, 3, self.heads, width // self.heads)
        queries, keys, values = in_heads.permute(2, 0, 3, 1, 4)
        gathered = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        output: Tensor = self.output(gathered.transpose(1, 2).reshape(rows, seq_len, width))
        return output
