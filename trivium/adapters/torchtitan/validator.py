"""Held-out rows -> their loss by source, by torchtitan's model on all its ranks: the rows that our Trainer reads.

What is measured is logged under `validation_metrics`, as torchtitan's own validator does, with the loss of each source
beside that of all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.validate import Validator
from torchtitan.distributed import utils as dist_utils
from torchtitan.tools import utils
from torchtitan.tools.logging import logger

from trivium.adapters.torchtitan import pipeline
from trivium.adapters.torchtitan.data import passes_of
from trivium.adapters.torchtitan.passes import Passes
from trivium.rows.batch import Batch
from trivium.train.validation import ValidationSet, validation_set

Sums = dict[str, tuple[float, int]]


class SourceValidator(Validator):
    """Evaluates when the config says so."""

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        passes: Passes | None = None

        def to_dict(self) -> dict[str, Any]:
            """For torchtitan's logs."""
            return {}

    def __init__(self, config: Config, **parts: Any) -> None:
        assert config.passes is not None
        super().__init__(config, **parts)  # its own loader is never built
        self.passes = config.passes
        self.rows: ValidationSet = validation_set(config.passes.plan)
        self.document_mask = True  # the stage's

    def should_validate(self, step: int) -> bool:
        """After this many steps: every n and at the run's end, and where a stage that asks for it ends or begins."""
        plan = self.passes.plan
        around = [stage for stage in plan.stages if step in (stage.start, stage.end)]
        if step and any(stage.config.evaluate for stage in around):
            return True
        every = plan.config.evaluate.every
        return every is not None and (step % every == 0 or step == plan.total_steps)

    def begins_with(self, step: int) -> bool:
        """Whether to evaluate before a stage's first step: the run's, or where documents are masked otherwise."""
        plan = self.passes.plan
        stage = plan.stage_at(step)
        if step != stage.start:
            return False
        if step == 0:
            return stage.config.evaluate or plan.config.evaluate.at_start
        before = plan.stages[stage.index - 1]
        return stage.config.evaluate and stage.config.document_mask != before.config.document_mask

    @torch.no_grad()
    def validate(self, model_parts: list[nn.Module], step: int) -> None:
        """Measure every source, and log it after this many steps."""
        for part in model_parts:
            part.eval()
        sums: Sums = {}
        for batch in self._batches():
            name = batch.sources[batch.source[0]]
            nats, tokens = self._measure(batch, model_parts)
            before = sums.get(name, (0.0, 0))
            sums[name] = before[0] + nats, before[1] + tokens
        for part in model_parts:
            part.train()
        losses = {name: nats / max(1, tokens) for name, (nats, tokens) in sums.items()}
        whole = sum(nats for nats, _ in sums.values()) / max(1, sum(tokens for _, tokens in sums.values()))
        by_source = {f"validation_metrics/loss/{name}": loss for name, loss in losses.items()}
        self.metrics_processor.log_validation(loss=whole, step=step, extra_metrics=by_source)
        logger.info("validate by source: " + ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))

    def _batches(self) -> Iterator[Batch]:
        """Batches of one source each, with the same number of passes on every rank."""
        at_once = self.passes.at_once
        for batch in self.rows.batches(
            at_once * self.passes.rows_of(self.rows.seq_len), self.dp_rank, self.dp_world_size
        ):
            yield _padded(batch, -batch.num_rows % at_once)

    def _measure(self, batch: Batch, parts: list[nn.Module]) -> tuple[float, int]:
        """Summed nats and tokens of a batch, on all ranks."""
        device = utils.device_type
        made = []
        seen = batch if self.document_mask else batch.joined()
        for inputs, targets in passes_of(seen, batch.num_rows // self.passes.at_once):
            there = {name: value.to(device) for name, value in inputs.items()}
            made.append(self.post_dataloading_process(there, targets.to(device), parts))
        tokens = torch.tensor(batch.loss_tokens(), device=device)
        dims = self.parallel_dims
        if dims.dp_enabled:
            tokens = dist_utils.dist_sum_tensor(tokens, dims.get_mesh("batch"))
        with self.validation_context():
            nats = self._nats(made, parts).detach()
        if dims.dp_cp_enabled:
            return float(dist_utils.dist_sum(nats, dims.get_optional_mesh("loss"))), int(tokens)
        return float(nats), int(tokens)

    def _nats(self, made: list[tuple[Tensor, Tensor, dict[str, Any]]], parts: list[nn.Module]) -> Tensor:
        if not self.parallel_dims.pp_enabled:
            ((inputs, labels, options),) = made
            total, _ = self.loss_fn(parts[0](inputs, **options), labels)
            return total
        ends = self.pp_has_first_stage, self.pp_has_last_stage
        total = pipeline.run(self.pp_schedule, made, *ends, learns=False)
        pipeline.forget_shapes(self.pp_schedule)
        return torch.zeros((), device=utils.device_type) if total is None else total


def _padded(batch: Batch, rows: int) -> Batch:
    """A batch with rows more, which are its first one without a target."""
    if not rows:
        return batch
    numbers = [*range(batch.num_rows), *[0] * rows]
    more = Batch(
        batch.tokens[numbers],
        batch.targets[numbers],
        batch.segments[numbers],
        batch.positions[numbers],
        batch.source[numbers],
        batch.sources,
    )
    more.targets[batch.num_rows :] = IGNORE_INDEX
    return more
