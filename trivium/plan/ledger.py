"""What every source has given when a stage starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trivium.config.schema import Stage
from trivium.data.mixture import StageMixture
from trivium.plan.facts import Facts
from trivium.plan.stage import Given


@dataclass(slots=True)
class Ledger:
    """Counts the epochs of each source, stage by stage; streams and absent sources have none."""

    facts: Mapping[str, Facts]
    epochs: dict[str, float] = field(default_factory=dict)

    def rows_to_read(self, stage: Stage, names: list[str]) -> dict[str, int]:
        """For each source that the stage's budget counts, the rows after which it has been read so often."""
        if stage.epochs is None:
            return {}
        counted = names if stage.epochs.source is None else [stage.epochs.source]
        if any(name not in self.facts for name in counted):
            return {}
        rows = {name: self.facts[name].rows(stage.seq_len, stage.packing) for name in counted}
        return {name: -int(-stage.epochs.epochs * count // 1) for name, count in rows.items()}

    def give(self, stage: Stage, mixture: StageMixture, num_rows: int) -> dict[str, Given]:
        """Enter what a stage of so many rows takes of each source."""
        given = {}
        for name, rows in zip(mixture.names, mixture.count(num_rows).tolist(), strict=True):
            epochs = so_far = None
            if name in self.facts:
                epochs = rows / self.facts[name].rows(stage.seq_len, stage.packing)
                so_far = self.epochs[name] = self.epochs.get(name, 0.0) + epochs
            given[name] = Given(rows, rows * stage.seq_len, epochs, so_far)
        return given
