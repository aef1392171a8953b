"""What every source has given when a stage starts.

A source that is read again with the same settings continues at the next row. With another row length, packing
or seed a new reading begins with what the old one left unread, so that nothing is read twice and nothing lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from trivium.config.stages import Stage
from trivium.plan.curve import exact
from trivium.plan.stage import Segment, SourceUse
from trivium.rows.figures import Figures
from trivium.rows.mixture import StageMixture
from trivium.rows.reading import Reading, RowSettings, Unread
from trivium.sources.open import OpenSource


@dataclass(slots=True)
class Ledger:
    """Each source's reading and position, stage by stage; a source that is not on disk has none."""

    sources: Mapping[str, OpenSource]
    now: dict[str, Segment] = field(default_factory=dict)
    consumed: dict[str, int] = field(default_factory=dict)

    def segment(self, name: str, settings: RowSettings) -> Segment:
        """Where a stage with these settings starts to read a source."""
        blocks = self.sources[name].blocks
        if name not in self.now:
            return Segment(Reading(blocks, settings, Unread.all_of(blocks, settings.seed)), 0)
        last = self.now[name]
        if last.reading.settings == settings:
            return last
        return Segment(Reading(blocks, settings, last.reading.after(last.start)), 0)

    def rows_to_read(self, stage: Stage, settings: RowSettings, names: list[str]) -> dict[str, int]:
        """For each source that the stage's budget counts, the rows after which it has been read that often."""
        if stage.epochs is None:
            return {}
        counted = stage.epochs.of(names)
        if any(name not in self.sources for name in counted):
            return {}
        rows = {}
        for name, epochs in counted.items():
            segment = self.segment(name, settings)
            tokens = ceil(exact(epochs) * self.sources[name].tokens)
            rows[name] = segment.reading.position_after(segment.start, tokens) - segment.start
        return rows

    def give(self, stage: Stage, settings: RowSettings, mixture: StageMixture, num_rows: int) -> dict[str, SourceUse]:
        """Enter what a stage of `num_rows` rows takes of each source."""
        uses = {}
        for name, rows in zip(mixture.names, mixture.count(num_rows).tolist(), strict=True):
            if name in self.sources:
                # The stage's loss_on goes before the source's; neither moves a row.
                masks_loss = (stage.loss_on or self.sources[name].loss_on) != "all"
                uses[name] = replace(self._give_one(name, settings, rows), masks_loss=masks_loss)
            else:
                uses[name] = SourceUse(rows)
        return uses

    def _give_one(self, name: str, settings: RowSettings, rows: int) -> SourceUse:
        tokens = self.sources[name].tokens
        if not rows:
            return SourceUse(0, Figures(), 0.0, self.consumed.get(name, 0) / tokens)
        segment = self.segment(name, settings)
        figures = segment.reading.figures(segment.start, segment.start + rows)
        self.now[name] = Segment(segment.reading, segment.start + rows)
        self.consumed[name] = self.consumed.get(name, 0) + figures.consumed
        epochs, so_far = (Fraction(count, tokens) for count in (figures.consumed, self.consumed[name]))
        return SourceUse(rows, figures, float(epochs), float(so_far), segment)
