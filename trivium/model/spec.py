"""Model sizes -> a decoder's full shape, its parameters and the work of a token; plain numbers, no framework.

FLOPs are counted as the field does (PaLM, nanoGPT, torchtitan): two for every weight of a matrix a token
passes, and every query against every key of its row, without halving for causality; the backward pass is
twice the forward one. Figures can then be compared with other people's.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

DEFAULT_THETA = 10_000.0
HEAD_DIM = 64
VOCAB_MULTIPLE = 128  # matrices of odd widths are slow on every device
XIELU_BETA, XIELU_EPS = 0.5, -1e-6  # xIELU's constants, as in the models that others publish
MOST_LAYERS = 10_000  # a file that asks for more is damaged, and making them would take hours

Scaling = Literal["linear", "ntk-by-parts", "yarn", "llama3"]
NormPlace = Literal["before", "after", "both"]
Activation = Literal["silu", "gelu", "gelu_tanh", "xielu"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: the base of the frequencies, and how they are stretched for longer rows."""

    theta: float = DEFAULT_THETA
    scaling: Scaling | None = None
    factor: float = 1.0
    original_seq_len: int = 0  # the context before scaling; all but linear need it
    attention_factor: float | None = None  # yarn: absent, 0.1 ln(factor) + 1
    beta_fast: float = 32.0  # yarn and ntk-by-parts: turns in the original context above which nothing is stretched
    beta_slow: float = 1.0  # the same: turns below which all is stretched
    low_freq_factor: float = 1.0  # llama3's names for the same two limits
    high_freq_factor: float = 4.0
    dropped: tuple[int, ...] = ()  # layers, counted from 0, that have no rotary positions
    sliding: "RopeSpec | None" = None  # of sliding layers; None: as all others

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        """From plain values, as files have them."""
        sliding = raw.get("sliding")
        return cls(**raw | {"sliding": None if sliding is None else cls.of(sliding)})

    def __post_init__(self) -> None:
        object.__setattr__(self, "dropped", tuple(self.dropped))  # a list in files

    def deciding(self) -> dict[str, Any]:
        """The fields that decide the rotary table under this scaling, by name."""
        parts = asdict(self)
        by_parts = ("theta", "scaling", "factor", "original_seq_len", "beta_fast", "beta_slow")
        keys = {
            None: ("theta",),
            "linear": ("theta", "scaling", "factor"),
            "ntk-by-parts": by_parts,
            "yarn": (*by_parts, "attention_factor"),
            "llama3": ("theta", "scaling", "factor", "original_seq_len", "low_freq_factor", "high_freq_factor"),
        }[self.scaling]
        found = {key: parts[key] for key in keys if parts[key] is not None}
        found |= {"dropped": list(self.dropped)} if self.dropped else {}
        return found | ({} if self.sliding is None else {"sliding": self.sliding.deciding()})


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How the slots of a layer see those that they may see."""

    window: int | None = None  # keys that a query sees, its own included; None: all before it
    scale: float | None = None  # what queries times keys are multiplied by; None: 1 / sqrt(head_dim)
    softcap: float | None = None  # c: scores s become c tanh(s / c)


@dataclass(frozen=True, slots=True)
class ForeignSpec:
    """A causal language model of the package transformers: its config, and what an engine counted on it."""

    family: str  # transformers' model_type
    config: str  # what config.json has, all defaults written out, as JSON with sorted keys
    parameters: int = 0  # weights of the whole model; 0: not counted yet
    token_weights: int = 0  # of these, those that a token is multiplied by: of experts the ones that it is sent to
    # Of each call of attention: FLOPs for a key, keys seen at most (0: all), and the cap of scores (0: none).
    attention: tuple[tuple[int, int, float], ...] = ()
    undivided: str = ""  # why its matrices cannot be split over the tensor axis; empty where they can
    empty_parts: tuple[str, ...] = ()  # of the model, which have no parameters: norms without any

    def __post_init__(self) -> None:
        object.__setattr__(self, "attention", tuple(map(tuple, self.attention)))  # lists in files
        object.__setattr__(self, "empty_parts", tuple(self.empty_parts))

    @property
    def table(self) -> dict[str, Any]:
        """The config's keys and values."""
        table: dict[str, Any] = json.loads(self.config)
        return table

    def changed(self, **values: Any) -> "ForeignSpec":
        """With other values of some of the config's keys; what was counted stays."""
        return replace(self, config=json.dumps(self.table | values, sort_keys=True))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides the shapes and the meaning of a model's weights.

    Of a foreign one layers, heads and widths are for showing and sharing out; its own config decides.
    """

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
    rotary_dim: int | None = None  # the first channels of a head, which rotate; None: all
    qk_norm_joint: bool = False  # with `qk_norm`: one norm over all heads together, not one over each
    qkv_bias: bool = False  # queries, keys and values are products plus a vector
    norm: NormPlace = "before"  # of the sublayers: of what they read, of what they add, or of both
    activation: Activation = "silu"
    gated: bool = True  # the feed-forward is activation(gate) * up; False: activation(up)
    window: int | None = None  # keys that a query of a sliding layer sees, its own included
    sliding: tuple[int, ...] = ()  # layers, counted from 0, that slide
    attention_scale: float | None = None  # what queries times keys are multiplied by; None: 1 / sqrt(head_dim)
    attention_softcap: float | None = None  # c: scores s become c tanh(s / c)
    logit_softcap: float | None = None  # the same of logits
    logit_scale: float = 1.0  # what logits are multiplied by, before a cap
    embedding_scale: float = 1.0  # what embeddings are multiplied by, before the first layer
    own: str | None = None  # the function that makes another model of this shape than the decoder, by its name
    own_parameters: int | None = None  # weights of such a model, where they were counted
    foreign: ForeignSpec | None = None  # a model of transformers, in place of the decoder

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Self:
        """From plain values, as files have them."""
        foreign = raw.get("foreign")
        made = {"rope": RopeSpec.of(raw["rope"]), "foreign": None if foreign is None else ForeignSpec(**foreign)}
        return cls(**raw | made)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sliding", tuple(self.sliding))  # a list in files

    @property
    def made_by(self) -> str:
        """Who names the function that makes the model: a path in the config, or a Trainer's method."""
        return "model.family" if ":" in (self.own or "") else "Trainer.model()"

    def attention_of(self, layer: int) -> AttentionSpec:
        """How the slots of a layer see, which is within a window where it slides."""
        window = self.window if layer in self.sliding else None
        return AttentionSpec(window, self.attention_scale, self.attention_softcap)

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The ways in which layers see, each once; of a foreign model without its scales, which it gives itself."""
        if self.foreign is not None:
            asked = dict.fromkeys((most, cap) for _, most, cap in self.foreign.attention)
            return tuple(AttentionSpec(most or None, softcap=cap or None) for most, cap in asked)
        return tuple(dict.fromkeys(self.attention_of(layer) for layer in range(self.layers)))

    @property
    def rotated(self) -> int:
        """Channels of a head that rotate."""
        return self.rotary_dim or self.head_dim

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding inside an engine; those beyond `vocab` are never read, trained or written."""
        if self.foreign is not None:
            return self.vocab
        return -(-self.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def layer_matrices(self) -> int:
        """Weights in the matrices of one layer."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        return attention + (3 if self.gated else 2) * self.width * self.ffn

    @property
    def layer_vectors(self) -> int:
        """Weights of one layer that are in no matrix: norms, biases, and xIELU's two numbers."""
        norms = (4 if self.norm == "both" else 2) * self.width
        all_heads = (self.heads + self.kv_heads) * self.head_dim
        qk_norms = all_heads if self.qk_norm_joint else 2 * self.head_dim
        biases = all_heads + self.kv_heads * self.head_dim if self.qkv_bias else 0
        return norms + (qk_norms if self.qk_norm else 0) + biases + (2 if self.activation == "xielu" else 0)

    @property
    def parameters(self) -> int:
        """Weights of the whole model, without those of the padded vocabulary; a model of one's own has what it has."""
        if self.own_parameters is not None:
            return self.own_parameters
        if self.foreign is not None:
            assert self.foreign.parameters, "an engine has counted them"
            return self.foreign.parameters
        embeddings = self.vocab * self.width * (1 if self.tied_embeddings else 2)
        return self.layers * (self.layer_matrices + self.layer_vectors) + self.width + embeddings

    @property
    def matrix_parameters(self) -> int:
        """Weights that a token is multiplied by: the layers' matrices and the output head; no embeddings, no norms."""
        if self.foreign is not None:
            assert self.foreign.token_weights, "an engine has counted them"
            return self.foreign.token_weights
        return self.layers * self.layer_matrices + self.vocab * self.width

    def forward_flops(self, keys: float) -> float:
        """FLOPs of one token's forward pass when its queries meet `keys` keys, or those of a sliding layer's window."""
        if self.foreign is not None:
            attention = sum(flops * min(keys, most or keys) for flops, most, _ in self.foreign.attention)
            return 2 * self.matrix_parameters + attention
        near = min(keys, self.window or keys)
        seen = len(self.sliding) * near + (self.layers - len(self.sliding)) * keys
        return 2 * self.matrix_parameters + 4 * self.heads * self.head_dim * seen

    def flops(self, seq_len: int) -> float:
        """FLOPs of learning one token in a row of this length: forward and backward."""
        return 3 * self.forward_flops(seq_len)
