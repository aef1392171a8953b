"""One dial: `model.depth` -> a model's shape, its optimizer, its batch and how long it is trained, by nanochat's rules.

    layers          depth
    width           64 for every layer, rounded up to a multiple of 128; one head for every 128 of it
    length          12 tokens for each parameter of the layers' matrices and of the unembedding: of the one stage that
                    has no length of its own
    batch           2^19 tokens at depth 12, growing with the length ** 0.383: the nearest power of two, in whole rows
    optimizer       muon; matrix 0.02, embedding 0.3, unembedding and rest 0.008, all times sqrt(batch / 2^19), and
                    those of the embeddings times (width / 768) ** -0.5 (`lr_scaling`)
    weight decay    0.28 at depth 12, times sqrt(batch / 2^19), over the length as a multiple of depth 12's

A key that is written wins, and what follows from it is chosen by it: a written width changes the length. Rates and
decay are chosen for muon alone. The plan prints every key that was chosen. Nothing else is the dial's: the schedule,
say, is constant unless it is written.
"""

from math import lcm, log2, sqrt
from typing import Any

from trivium.config.optimizer import GroupLr
from trivium.config.schema import Config, Model
from trivium.config.stages import BatchTokens, TokenBudget, merged_stages
from trivium.errors import PlanError, Problem
from trivium.plan.inherit import Inherited
from trivium.plan.shape.model import model_spec, vocab_of

TOKENS_PER_PARAMETER = 12
BASE_DEPTH, BASE_BATCH, BATCH_POWER = 12, 2**19, 0.383
RATES = {"matrix": 0.02, "embedding": 0.3, "unembedding": 0.008, "rest": 0.008}
BASE_DECAY = 0.28
LENGTHS = {"steps", "tokens", "epochs"}
BATCHES = {"batch_size", "batch_tokens"}


def dialed(config: Config) -> Inherited:
    """The config with what `model.depth` chooses; PlanError where no vocabulary is known to count parameters with."""
    depth = config.model.depth
    assert depth is not None, "there is a dial"
    vocab = vocab_of(config, 0)
    if isinstance(vocab, Problem):
        raise PlanError([vocab])
    model = config.model.of_depth
    length, base = (_length(each, vocab) for each in (model, Model(depth=BASE_DEPTH).of_depth))
    shape = ("layers", "width", "heads")
    chosen = {f"model.{key}": getattr(model, key) for key in shape if key not in config.model.model_fields_set}
    batch, is_chosen = _batch(config, length / base)
    if is_chosen:
        chosen["defaults.batch_tokens"] = BatchTokens(size=batch)
    chosen |= _optimizer(config, batch / BASE_BATCH, length / base)
    open_ended = [number for number, stage in enumerate(config.stages) if not LENGTHS & stage.model_fields_set]
    chosen |= {f"stages[{number}].tokens": TokenBudget(count=length) for number in open_ended}
    return Inherited(_with(config, chosen), f"model.depth = {depth}", chosen)


def _length(model: Model, vocab: int) -> int:
    return TOKENS_PER_PARAMETER * model_spec(model, vocab, 1).matrix_parameters


def _batch(config: Config, times: float) -> tuple[int, bool]:
    """Tokens in a step of the first stage, for a run that is this many times as long as depth 12's; whether chosen."""
    given = config.defaults.model_fields_set
    stages = merged_stages(config.stages, config.defaults)
    lacking = [stage for stage in stages if not BATCHES & (stage.model_fields_set | given)]
    if not lacking:
        return stages[0].batches.size_at(0) * stages[0].seq_len, False
    rows = lcm(*(stage.seq_len for stage in lacking))
    batch = 2 ** round(log2(BASE_BATCH * times**BATCH_POWER))
    return max(rows, batch // rows * rows), True


def _optimizer(config: Config, batches: float, times: float) -> dict[str, Any]:
    """Muon and its rates, for a batch and a length as multiples of depth 12's."""
    given = config.optimizer
    if "name" in given.model_fields_set and given.name != "muon":
        return {}
    rates = {group: float(f"{rate * sqrt(batches):.4g}") for group, rate in RATES.items()}
    decay = float(f"{BASE_DECAY * sqrt(batches) / times:.4g}")
    chosen = {"name": "muon", "lr": GroupLr(**rates), "lr_scaling": "width", "weight_decay": decay}
    if "lr" in given.model_fields_set:
        del chosen["lr_scaling"]
    return {f"optimizer.{key}": value for key, value in chosen.items() if key not in given.model_fields_set}


def _with(config: Config, chosen: dict[str, Any]) -> Config:
    """The config with these keys set."""
    stages = tuple(
        stage.model_copy(update={"tokens": chosen[f"stages[{number}].tokens"]})
        if f"stages[{number}].tokens" in chosen
        else stage
        for number, stage in enumerate(config.stages)
    )
    updates: dict[str, Any] = {"stages": stages}
    for table in ("model", "defaults", "optimizer"):
        own = {key.partition(".")[2]: value for key, value in chosen.items() if key.startswith(f"{table}.")}
        updates[table] = getattr(config, table).model_copy(update=own)
    return config.model_copy(update=updates)
