"""Model sizes -> a decoder's full shape, its parameters and the work of a token; plain numbers, no framework.

FLOPs are counted as the field does (PaLM, nanoGPT, torchtitan): two for every weight of a matrix a token
passes, and every query against every key of its row, without halving for causality; the backward pass is
twice the forward one. Figures can then be compared with other people's.
"""

from dataclasses import dataclass
from typing import Literal

from trivium.config.schema import SIZES, Model
from trivium.config.stages import Rope
from trivium.errors import ConfigError, Problem

DEFAULT_THETA = 10_000.0
HEAD_DIM = 64
VOCAB_MULTIPLE = 128  # matrices of odd widths are slow on every device

Scaling = Literal["linear", "yarn", "llama3"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: the base of the frequencies, and how they are stretched for longer rows."""

    theta: float = DEFAULT_THETA
    scaling: Scaling | None = None
    factor: float = 1.0
    original_seq_len: int = 0  # the context before scaling; yarn and llama3 need it
    attention_factor: float | None = None  # yarn: absent, 0.1 ln(factor) + 1
    beta_fast: float = 32.0  # yarn: rotations in the original context above which nothing is stretched
    beta_slow: float = 1.0  # yarn: rotations below which all is stretched
    low_freq_factor: float = 1.0  # llama3's names for the same two limits
    high_freq_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides the shapes and the meaning of a decoder's weights."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_seq_len: int
    qk_norm: bool = False
    tied_embeddings: bool = False
    init_std: float = 0.02
    norm_eps: float = 1e-6
    rope: RopeSpec = RopeSpec()

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding inside an engine; those beyond `vocab` are never read, trained or written."""
        return -(-self.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def layer_matrices(self) -> int:
        """Weights in the matrices of one layer."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.ffn

    @property
    def parameters(self) -> int:
        """Weights of the whole model, without those of the padded vocabulary."""
        norms = 2 * self.width + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = self.vocab * self.width * (1 if self.tied_embeddings else 2)
        return self.layers * (self.layer_matrices + norms) + self.width + embeddings

    def forward_flops(self, keys: float) -> float:
        """FLOPs of one token's forward pass when its queries meet this many keys."""
        matrices = self.layers * self.layer_matrices + self.vocab * self.width
        return 2 * matrices + 4 * self.layers * self.heads * self.head_dim * keys

    def flops(self, seq_len: int) -> float:
        """FLOPs of learning one token in a row of this length: forward and backward."""
        return 3 * self.forward_flops(seq_len)


def model_spec(model: Model, vocab: int, longest_row: int) -> ModelSpec:
    """The shape that a checked `[model]` asks for, with the tokenizer's vocabulary and the longest stage's rows."""
    layers, width, heads, kv_heads, ffn = _shape(model)
    max_seq_len = model.max_seq_len or longest_row
    return ModelSpec(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width // heads,
        ffn=ffn,
        vocab=model.vocab or vocab,
        max_seq_len=max_seq_len,
        qk_norm=model.qk_norm,
        tied_embeddings=model.tied_embeddings,
        init_std=model.init_std,
        rope=rope_spec(model.rope, RopeSpec(), max_seq_len),
    )


def rope_spec(rope: Rope | None, own: RopeSpec, max_seq_len: int) -> RopeSpec:
    """A stage's rotary positions; keys that it does not give are the model's own, but for scaling."""
    if rope is None:
        return own
    return RopeSpec(
        theta=own.theta if rope.theta is None else rope.theta,
        scaling=rope.scaling,
        factor=1.0 if rope.factor is None else rope.factor,
        original_seq_len=rope.original_seq_len or own.original_seq_len or max_seq_len,
    )


def _shape(model: Model) -> tuple[int, int, int, int, int]:
    if model.size is not None:
        size = SIZES[model.size]
        return size.layers, size.width, size.heads, size.kv_heads, size.ffn
    if model.layers is None or model.width is None:
        what = "has no size of its own. Read its weights' folder, or write layers and width."
        raise ConfigError([Problem("model", what)])
    heads = model.heads or max(1, model.width // HEAD_DIM)
    ffn = model.ffn or -(-model.width * 8 // (3 * 64)) * 64
    return model.layers, model.width, heads, model.kv_heads or heads, ffn
