"""What was found in a folder, and this machine -> the run: a model, how long it trains, and its stages.

A model should read about 20 tokens for each of its weights, each document four times at most, and a first run should
end in minutes: the largest model that can is taken. All figures before preparing are estimates; the plan has the exact
ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trivium.errors import UsageError
from trivium.init.found import FoundFolder, FoundSource
from trivium.init.machine import ThisMachine
from trivium.init.tokenizer import ChosenTokenizer, choose_tokenizer
from trivium.model.spec import HEAD_DIM, ModelSpec

TOKENS_PER_WEIGHT = 20  # that a model should read; more teaches a small one little
FEWEST_PER_WEIGHT = 10  # below this a smaller model learns more in the same time
MOST_EPOCHS = 3.5  # of a source; from the fifth on, documents teach little
ANNEAL = 0.2  # of the tokens, with the learning rate going to nothing
TALK_EPOCHS, TALK_SHARE, MOST_TALK = 2, 0.8, 0.3  # of conversations: how often, their share, their part of the run
FEWEST_DOCUMENTS = 24  # that some can be held out of
HELD_OUT_DOCUMENTS, HELD_OUT, MOST_HELD_OUT_TOKENS = 6, 0.01, 500_000
FEWEST_TOKENS = 500  # of a folder
FEWEST_STEPS = 150  # a batch is made smaller until a run has as many
PROCESS_BYTES = 800_000_000  # of memory, for the libraries
WEIGHT_BYTES = 16  # of memory, for a weight, its gradient and AdamW's two averages
ACTIVATIONS = 40  # values of a slot that a layer keeps, in units of the model's width
MEMORY_PART = 0.6  # of the machine's, that a run may take


@dataclass(frozen=True, slots=True)
class Rung:
    """A model's shape, and the settings that suit it."""

    layers: int
    width: int
    vocab: int  # the largest that suits it
    lr: float
    seq_len: int
    rows: int

    def spec(self, vocab: int) -> ModelSpec:
        """The model with a vocabulary."""
        heads, ffn = self.width // HEAD_DIM, -(-self.width * 8 // (3 * 64)) * 64
        return ModelSpec(self.layers, self.width, heads, heads, HEAD_DIM, ffn, vocab, self.seq_len)


RUNGS = (
    Rung(2, 64, 1024, 8e-3, 256, 16),
    Rung(4, 64, 2048, 8e-3, 256, 16),
    Rung(3, 128, 2048, 5e-3, 256, 16),
    Rung(4, 128, 2048, 4e-3, 256, 16),
    Rung(6, 192, 4096, 3e-3, 256, 32),
    Rung(6, 256, 4096, 2e-3, 512, 16),
    Rung(8, 384, 8192, 1.5e-3, 512, 32),
    Rung(8, 512, 16_384, 1e-3, 1024, 32),
    Rung(12, 768, 32_768, 6e-4, 1024, 128),
    Rung(24, 1024, 32_768, 4e-4, 2048, 128),
    Rung(24, 1536, 32_768, 3e-4, 2048, 256),
    Rung(24, 2048, 32_768, 2.5e-4, 2048, 512),
)


@dataclass(frozen=True, slots=True)
class ChosenSource:
    """A source, the tokens that it is expected to have, and what is held out of it."""

    found: FoundSource
    tokens: int
    validation: float | None


@dataclass(frozen=True, slots=True)
class ChosenStage:
    """A stage: how long, what it reads, and why."""

    name: str
    tokens: int
    mixture: Mapping[str, float]
    lr: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Everything that a config says, with the figures that its comments give."""

    found: FoundFolder
    machine: ThisMachine
    minutes: float
    tokenizer: ChosenTokenizer
    rung: Rung
    seq_len: int
    rows: int
    micro_rows: int | None  # in one pass, where a batch does not fit into memory
    sources: tuple[ChosenSource, ...]
    stages: tuple[ChosenStage, ...]

    @property
    def spec(self) -> ModelSpec:
        return self.rung.spec(self.tokenizer.vocab)

    @property
    def tokens(self) -> int:
        """Of all stages."""
        return sum(stage.tokens for stage in self.stages)

    @property
    def steps(self) -> int:
        return sum(-(-stage.tokens // (self.seq_len * self.rows)) for stage in self.stages)

    @property
    def is_bound_by_text(self) -> bool:
        """Whether more text, not more time, would allow a larger model."""
        texts = sum(source.tokens for source in self.sources if source.found.kind != "chat")
        return 0 < MOST_EPOCHS * texts < TOKENS_PER_WEIGHT * self.spec.matrix_parameters

    @property
    def seconds(self) -> float:
        """How long training is expected to take here."""
        return self.tokens * self.spec.flops(self.seq_len) / self.machine.flops

    @property
    def memory(self) -> int:
        """Bytes that training is expected to take."""
        return memory_of(self.spec, self.seq_len * (self.micro_rows or self.rows))


def choose(
    found: FoundFolder, machine: ThisMachine, out: Path, *, minutes: float | None = None, tokenizer: str | None = None
) -> Choice:
    """The run of a folder; `out` is where a tokenizer is written that is to be trained."""
    minutes = machine.minutes if minutes is None else minutes
    chosen = [_try(found, machine, out, minutes, tokenizer, rung) for rung in RUNGS]
    fitting = [each for each in chosen if each.tokens >= FEWEST_PER_WEIGHT * each.spec.matrix_parameters]
    fitting = [each for each in fitting if each.memory <= MEMORY_PART * machine.memory]
    found_tokens = sum(source.tokens for source in chosen[0].sources)
    if found_tokens < FEWEST_TOKENS:
        what = f"has about {found_tokens} tokens, too few to train on"
        raise UsageError(f"{found.folder}: {what}. Put more text into it.")
    return fitting[-1] if fitting else chosen[0]


def _try(found: FoundFolder, machine: ThisMachine, out: Path, minutes: float, asked: str | None, rung: Rung) -> Choice:
    """The run with one of the shapes."""
    tokenizer = choose_tokenizer(found, out, asked, rung.vocab)
    sources = tuple(_source(each, tokenizer) for each in found.sources)
    spec = rung.spec(tokenizer.vocab)
    texts = {each.found.name: each.tokens for each in sources if each.found.kind != "chat"}
    chats = {each.found.name: each.tokens for each in sources if each.found.kind == "chat"}
    in_time = minutes * 60 * machine.flops / spec.flops(rung.seq_len)
    most = min(in_time, TOKENS_PER_WEIGHT * spec.matrix_parameters)
    stages = _stages(texts, chats, most)
    total = sum(stage.tokens for stage in stages)
    seq_len = min(rung.seq_len, max(16, _power_of_two(total / 64)))
    rows = min(rung.rows, max(1, _power_of_two(total / seq_len / FEWEST_STEPS)))
    micro = rows
    while micro > 1 and memory_of(spec, seq_len * micro) > MEMORY_PART * machine.memory:
        micro //= 2
    return Choice(
        found, machine, minutes, tokenizer, rung, seq_len, rows, None if micro == rows else micro, sources, stages
    )


def memory_of(spec: ModelSpec, slots: int) -> int:
    """Bytes of weights, their gradients and averages, and of a pass over this many slots, in float32."""
    activations = 4 * slots * (spec.layers * ACTIVATIONS * spec.width + 3 * spec.padded_vocab)
    return PROCESS_BYTES + WEIGHT_BYTES * spec.parameters + activations


def _source(source: FoundSource, tokenizer: ChosenTokenizer) -> ChosenSource:
    estimate = source.estimate
    tokens = estimate.tokens
    if tokens is None:
        tokens = round(estimate.text_bytes / tokenizer.token_bytes) + estimate.documents
    validation = held_out(estimate.documents, tokens)
    return ChosenSource(source, round(tokens * (1 - (validation or 0))), validation)


def held_out(documents: int, tokens: int) -> float | None:
    """The fraction of documents for validation: enough of them to measure, no more than that; None of too few."""
    if documents < FEWEST_DOCUMENTS:
        return None
    wanted = min(HELD_OUT, MOST_HELD_OUT_TOKENS / max(1, tokens))
    return float(f"{max(wanted, HELD_OUT_DOCUMENTS / documents):.1g}")


def _stages(texts: Mapping[str, int], chats: Mapping[str, int], most: float) -> tuple[ChosenStage, ...]:
    """General, anneal, and talk where there are conversations; of as many tokens as may be read in the time."""
    talk = min(TALK_EPOCHS * sum(chats.values()) / (TALK_SHARE if texts else 1.0), MOST_TALK * most if texts else most)
    read = min(most - talk, MOST_EPOCHS * sum(texts.values()))
    stages = []
    if texts:
        shares = _shares(texts)
        anneal = annealed(texts, read)
        why = "everything, in proportion to its size"
        stages.append(ChosenStage("general", round(read * (1 - ANNEAL)), shares, None, why))
        why = (
            "small sources weigh more: often the better ones"
            if len(texts) > 1
            else "the same text, and ever smaller steps"
        )
        stages.append(ChosenStage("anneal", round(read * ANNEAL), anneal, '{ shape = "linear", to = 0.0 }', why))
    if chats:
        parts = {name: TALK_SHARE * share for name, share in _shares(chats).items()} if texts else _shares(chats)
        if texts:
            parts |= {name: (1 - TALK_SHARE) * share for name, share in _shares(texts).items()}
        scale = "scale = 0.3, " if texts else ""
        why = "conversations" + (", with a fifth of text so that nothing is forgotten" if texts else "")
        stages.append(ChosenStage("talk", round(talk), parts, f'{{ {scale}shape = "linear", to = 0.0 }}', why))
    return tuple(stages)


def _shares(sizes: Mapping[str, float]) -> dict[str, float]:
    total = sum(sizes.values())
    return {name: size / total for name, size in sizes.items()}


def annealed(sizes: Mapping[str, int], read: float) -> dict[str, float]:
    """Shares by the square root of sizes, in which no source is read more often than it may be in the whole run."""
    epochs = read / sum(sizes.values())
    left = {name: size * max(0.0, MOST_EPOCHS - (1 - ANNEAL) * epochs) for name, size in sizes.items()}
    wanted = _shares({name: math.sqrt(size) for name, size in sizes.items()})
    bounded = {name: min(share, left[name] / max(1.0, ANNEAL * read)) for name, share in wanted.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    bounded[largest] += 1 - sum(bounded.values())
    return bounded


def _power_of_two(number: float) -> int:
    """The largest that is not above the number; 1 at least."""
    return 1 << max(0, math.floor(math.log2(max(1.0, number))))


def rounded_shares(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares with two decimals, or three of small ones, that add up to exactly 1."""
    parts = {name: max(1, round(share * 1000)) for name, share in shares.items()}
    largest = max(parts, key=lambda name: parts[name])
    parts[largest] += 1000 - sum(parts.values())
    return {name: part / 1000 for name, part in parts.items()}
