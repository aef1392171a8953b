"""What is compared: each contender turns a corpus into an endless iterator of batches of 8 rows of 2,048 tokens.

Every peer runs in the fastest of its documented configurations that needs no process or thread of its own:
all of this is about one core. A peer's index is built before the clock starts. What a batch holds:

| contender                   | a batch                                                                         |
|-----------------------------|---------------------------------------------------------------------------------|
| trivium                     | tokens, targets, segments, positions (int32), source; packed by best fit        |
| NumPy row copy              | tokens (int32), of rows drawn beforehand: nothing but 8 copies into a new array |
| torchdata nodes             | tokens (int32); a tensor for each row, stacked by default_collate               |
| ... filled by NumPy         | tokens (int32); as the NumPy row copy, with nodes that draw and batch the rows  |
| grain                       | tokens (int32)                                                                  |
| Megatron-core               | tokens, labels, positions (int64), loss mask; positions run through documents   |
| OLMo-core                   | tokens (int64), row numbers                                                     |
| Megatron-core, documents    | as above; positions restart and the loss is masked at the end token             |
| grain, first fit            | tokens, segments, positions; packed into 64 rows at a time                      |
| grain, concat then split    | tokens, segments, positions                                                     |
| OLMo-core, document lengths | as above, and lengths of documents, found by the end token                      |
| OLMo-core, packed           | as above, packed by best fit beforehand, and a label mask                       |
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from corpus import EOS, ROWS, SEQ_LEN, SHARES, STEP_TOKENS, VOCAB, Corpus
from numpy.typing import NDArray

Tier = Literal["trivium", "limit", "bare rows", "documents"]
Tokens = Any  # an array or tensor of 8 rows of 2,048

TRIVIUM_STEPS = 40_000
DRAWN_ROWS = 2**18
WINDOW_TOKENS = 2**24
PACKED_ROWS = 64  # of grain, at a time: 64 pad 0.4%, 8 pad 7% and are no faster


@dataclass(frozen=True, slots=True)
class Contender:
    """Who it is, what else must be installed for it, and the batches it gives."""

    name: str
    tier: Tier
    package: str | None
    batches: Callable[[Corpus], Iterator[Tokens]]


def trivium_loader(corpus: Corpus) -> Any:
    """A loader of one stage over the whole corpus."""
    load, make, loader = map(import_module, ("trivium.config.load", "trivium.plan.make", "trivium.loader.loader"))
    raw = {
        "run": {"name": "benchmark"},
        "model": {"size": "tiny"},
        "sources": {name: {"kind": "tokens", "path": str(corpus.folder / name)} for name in SHARES},
        "stages": [
            {"name": "one", "steps": TRIVIUM_STEPS, "mixture": SHARES, "seq_len": SEQ_LEN, "batch_size": ROWS},
        ],
    }
    return loader.Loader(make.make_plan(load.validate(raw, "benchmark.toml")[0]), prefetch=0)


def trivium_in_sequence(corpus: Corpus) -> Iterator[Tokens]:
    loader = trivium_loader(corpus)
    while True:
        for _, batch in loader.batches(start=0):
            yield batch.tokens


def trivium_at_random(corpus: Corpus) -> Iterator[Tokens]:
    """Steps at random among those whose windows stay at hand: two of the largest source, and packed before."""
    loader = trivium_loader(corpus)
    window_tokens = min(WINDOW_TOKENS, corpus.tokens_each)
    loaded = min(TRIVIUM_STEPS, int(2 * window_tokens / max(SHARES.values()) / STEP_TOKENS))
    for step in range(0, loaded, 8):
        loader.batch(step)
    steps = np.random.default_rng(0).integers(0, loaded, DRAWN_ROWS).tolist()
    while True:
        for step in steps:
            yield loader.batch(step).tokens


def drawn_rows(corpus: Corpus) -> tuple[list[NDArray[np.uint16]], list[tuple[int, int]]]:
    """Mapped tokens, and rows at random: the source, by its share, and the first token."""
    random = np.random.default_rng(0)
    sources = random.choice(len(SHARES), DRAWN_ROWS, p=list(SHARES.values()))
    starts = random.integers(0, corpus.tokens_each // SEQ_LEN, DRAWN_ROWS) * SEQ_LEN
    return [corpus.tokens(name) for name in SHARES], list(zip(sources.tolist(), starts.tolist(), strict=True))


def numpy_row_copy(corpus: Corpus) -> Iterator[Tokens]:
    tokens, rows = drawn_rows(corpus)
    while True:
        for first in range(0, len(rows), ROWS):
            batch = np.empty((ROWS, SEQ_LEN), np.int32)
            for row, (source, start) in enumerate(rows[first : first + ROWS]):
                batch[row] = tokens[source][start : start + SEQ_LEN]
            yield batch


class SourceRows:
    """Rows of one source, by number, each read by a function."""

    def __init__(self, tokens: NDArray[np.uint16], read: Callable[[Any], Any] = lambda row: row) -> None:
        self.tokens = tokens
        self.read = read

    def __len__(self) -> int:
        return len(self.tokens) // SEQ_LEN

    def __getitem__(self, row: int) -> Any:
        return self.read(self.tokens[row * SEQ_LEN : (row + 1) * SEQ_LEN])


def filled(rows: Any) -> NDArray[np.int32]:
    """Rows copied into a new array."""
    batch = np.empty((len(rows), SEQ_LEN), np.int32)
    for place, row in enumerate(rows):
        batch[place] = row
    return batch


def torchdata(corpus: Corpus, read: Callable[[Any], Any], collate: Callable[[Any], Any]) -> Iterator[Tokens]:
    """A sampler and a mapper for each source, mixed by weight, and a batcher."""
    nodes, data = import_module("torchdata.nodes"), import_module("torch.utils.data")
    sources = {}
    for name in SHARES:
        rows = SourceRows(corpus.tokens(name), read)
        sources[name] = nodes.MapStyleWrapper(rows, data.RandomSampler(rows))
    mixed = nodes.MultiNodeWeightedSampler(sources, dict(SHARES), nodes.StopCriteria.CYCLE_FOREVER)
    yield from nodes.Loader(nodes.Mapper(nodes.Batcher(mixed, ROWS), collate))


def torchdata_rows(corpus: Corpus) -> Iterator[Tokens]:
    torch = import_module("torch")
    return torchdata(corpus, lambda row: torch.from_numpy(row.astype(np.int32)), torch.utils.data.default_collate)


def torchdata_filled(corpus: Corpus) -> Iterator[Tokens]:
    torch = import_module("torch")
    return torchdata(corpus, lambda row: row, lambda rows: torch.from_numpy(filled(rows)))


def grain_rows(corpus: Corpus) -> Iterator[Tokens]:
    grain = import_module("grain")
    sources = [grain.MapDataset.source(SourceRows(corpus.tokens(name))).shuffle(seed=0).repeat() for name in SHARES]
    mixed = grain.MapDataset.mix(sources, list(SHARES.values())).batch(ROWS, batch_fn=filled)
    for step in count():
        yield mixed[step]


class SourcePieces:
    """Documents of one source, those longer than a row cut into pieces."""

    def __init__(self, tokens: NDArray[np.uint16], ends: NDArray[np.int64]) -> None:
        self.tokens = tokens
        lengths = np.diff(ends, prepend=0)
        pieces = -(-lengths // SEQ_LEN)
        number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self.starts = np.repeat(ends - lengths, pieces) + number * SEQ_LEN
        self.ends = np.minimum(self.starts + SEQ_LEN, np.repeat(ends, pieces))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, piece: int) -> dict[str, NDArray[np.uint16]]:
        return {"tokens": self.tokens[self.starts[piece] : self.ends[piece]]}


def grain_packed(corpus: Corpus, pack: Callable[[Any, Any], Any]) -> Iterator[Tokens]:
    grain = import_module("grain")
    sources = []
    for name in SHARES:
        pieces = SourcePieces(corpus.tokens(name), corpus.ends(name))
        sources.append(grain.MapDataset.source(pieces).shuffle(seed=0).repeat())
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    documents = grain.MapDataset.mix(sources, list(SHARES.values())).to_iter_dataset(options)
    for batch in pack(grain.experimental, documents).batch(ROWS):
        yield batch["tokens"]


def grain_first_fit(corpus: Corpus) -> Iterator[Tokens]:
    def pack(grain: Any, documents: Any) -> Any:
        return grain.FirstFitPackIterDataset(
            documents, length_struct={"tokens": SEQ_LEN}, num_packing_bins=PACKED_ROWS, shuffle_bins=False
        )

    return grain_packed(corpus, pack)


def grain_concat(corpus: Corpus) -> Iterator[Tokens]:
    def pack(grain: Any, documents: Any) -> Any:
        return grain.ConcatThenSplitIterDataset(documents, length_struct={"tokens": SEQ_LEN})

    return grain_packed(corpus, pack)


def megatron(corpus: Corpus, documents: bool) -> Iterator[Tokens]:
    """Samples of each source's GPTDataset, blended and collated by a DataLoader; masks are left to the kernels."""
    torch, builder, gpt = map(
        import_module,
        ("torch", "megatron.core.datasets.blended_megatron_dataset_builder", "megatron.core.datasets.gpt_dataset"),
    )
    paths = [str(corpus.megatron(name).with_suffix("")) for name in SHARES]
    config = gpt.GPTDatasetConfig(
        random_seed=0,
        sequence_length=SEQ_LEN,
        blend=(paths, list(SHARES.values())),
        split="1,0,0",
        tokenizer=SimpleNamespace(vocab_size=VOCAB, eod=EOS, pad=-1, unique_identifiers={}),
        reset_position_ids=documents,
        reset_attention_mask=documents,
        eod_mask_loss=documents,
        create_attention_mask=False,
    )
    samples = corpus.tokens_each // SEQ_LEN
    blended, _, _ = builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, [samples, 0, 0], lambda: True, config).build()
    batches = torch.utils.data.DataLoader(blended, batch_size=ROWS, drop_last=True)
    while True:
        for batch in batches:
            yield batch["tokens"]


def olmo(corpus: Corpus, dataset: str, **options: Any) -> Iterator[Tokens]:
    data = import_module("olmo_core.data")
    logging.disable(logging.INFO)
    rows = getattr(data.numpy_dataset, dataset)(
        *(corpus.ds(name) for name in SHARES),
        sequence_length=SEQ_LEN,
        pad_token_id=VOCAB - 1,
        eos_token_id=EOS,
        vocab_size=VOCAB,
        dtype=np.uint16,
        **options,
    )
    rows.work_dir = corpus.folder / "olmo"
    rows.prepare()
    loader = data.NumpyFSLDataLoader(
        rows,
        collator=data.DataCollator(pad_token_id=VOCAB - 1),
        global_batch_size=STEP_TOKENS,
        work_dir=corpus.folder / "olmo",
        num_threads=0,
    )
    while True:
        loader.reshuffle(in_memory=True)
        for batch in loader:
            yield batch["input_ids"]
        loader.reset()


CONTENDERS = (
    Contender("trivium, in sequence", "trivium", None, trivium_in_sequence),
    Contender("trivium, at random steps", "trivium", None, trivium_at_random),
    Contender("NumPy row copy", "limit", None, numpy_row_copy),
    Contender("... in torchdata nodes", "limit", "torchdata", torchdata_filled),
    Contender("torchdata nodes", "bare rows", "torchdata", torchdata_rows),
    Contender("grain", "bare rows", "grain", grain_rows),
    Contender("Megatron-core", "bare rows", "megatron-core", lambda corpus: megatron(corpus, documents=False)),
    Contender("OLMo-core", "bare rows", "ai2-olmo-core", lambda corpus: olmo(corpus, "NumpyFSLDataset")),
    Contender("grain, first fit", "documents", "grain", grain_first_fit),
    Contender("grain, concat then split", "documents", "grain", grain_concat),
    Contender(
        "Megatron-core, documents", "documents", "megatron-core", lambda corpus: megatron(corpus, documents=True)
    ),
    Contender(
        "OLMo-core, document lengths",
        "documents",
        "ai2-olmo-core",
        lambda corpus: olmo(corpus, "NumpyFSLDataset", generate_doc_lengths=True),
    ),
    Contender(
        "OLMo-core, packed",
        "documents",
        "ai2-olmo-core",
        lambda corpus: olmo(corpus, "NumpyPackedFSLDataset", generate_doc_lengths=True),
    ),
)
