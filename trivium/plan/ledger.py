"""What every source has given when a stage starts.

A source that is read again with the same settings continues at the next row. With another row length, packing
or seed a new reading begins with what the old one left unread, so that nothing is read twice and nothing lost.
A source that is not on disk has epochs where its expected tokens are known: those of rows without padding.
The views of a source share its ledger: an entry for each band of document lengths says who read it last, and how far.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from trivium.config.stages import Stage
from trivium.plan.lr.curve import exact
from trivium.plan.stage import Segment, SourceUse
from trivium.rows.figures import Figures
from trivium.rows.mixture import StageMixture
from trivium.rows.reading import Reading, RowSettings, Unread
from trivium.sources.open import OpenSource


@dataclass(slots=True)
class Ledger:
    """Each source's reading and position, stage by stage; a source that is not on disk has none."""

    sources: Mapping[str, OpenSource]
    expected: Mapping[str, int] = field(default_factory=dict)  # tokens of sources that are not on disk, where given
    now: dict[tuple[str, int], Segment] = field(default_factory=dict)  # by the source with the documents, and band
    consumed: dict[str, int] = field(default_factory=dict)

    def segment(self, name: str, settings: RowSettings) -> Segment:
        """Where a stage with these settings starts to read a source."""
        blocks = self.sources[name].blocks
        bands = list(blocks.lengths.bands)
        last = [self.now.get((blocks.name, band)) for band in bands]
        readers = {id(segment): segment for segment in last}
        if len(readers) == 1 and last[0] is not None:
            reading = last[0].reading
            if reading.settings == settings and list(reading.blocks.lengths.bands) == bands:
                return last[0]
        unread = []
        for reader in readers.values():
            state = Unread.all_of(blocks, settings.seed) if reader is None else reader.reading.after(reader.start)
            unread.append(state.only([band for band, each in zip(bands, last, strict=True) if each is reader], blocks))
        return Segment(Reading(blocks, settings, Unread.joined(unread)), 0)

    def rows_to_read(self, stage: Stage, settings: RowSettings, names: list[str]) -> dict[str, int]:
        """For each source that the stage's budget counts, the rows after which it has been read that often."""
        if stage.epochs is None:
            return {}
        counted = stage.epochs.of(names)
        if any(name not in self.sources and name not in self.expected for name in counted):
            return {}
        rows = {}
        for name, epochs in counted.items():
            if name not in self.sources:
                rows[name] = ceil(exact(epochs) * self.expected[name] / settings.seq_len)
                continue
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
                dropped = 0.0 if stage.goldfish is None else 1 / stage.goldfish.k
                given = self._give_one(name, settings, rows)
                uses[name] = replace(given, masks_loss=masks_loss, dropped=dropped)
            elif name in self.expected:
                tokens = rows * settings.seq_len
                self.consumed[name] = self.consumed.get(name, 0) + tokens
                uses[name] = SourceUse(
                    rows,
                    epochs=tokens / self.expected[name],
                    epochs_so_far=self.consumed[name] / self.expected[name],
                )
            else:
                uses[name] = SourceUse(rows)
        return uses

    def _give_one(self, name: str, settings: RowSettings, rows: int) -> SourceUse:
        if not rows:
            return SourceUse(0, Figures(), 0.0, float(self._epochs_so_far(name)))
        segment = self.segment(name, settings)
        figures = segment.reading.figures(segment.start, segment.start + rows)
        blocks, after = segment.reading.blocks, Segment(segment.reading, segment.start + rows)
        self.now |= {(blocks.name, band): after for band in blocks.lengths.bands}
        for reader in {name, blocks.name}:
            self.consumed[reader] = self.consumed.get(reader, 0) + figures.consumed
        epochs = Fraction(figures.consumed, self.sources[name].tokens)
        return SourceUse(rows, figures, float(epochs), float(self._epochs_so_far(name)), segment)

    def _epochs_so_far(self, name: str) -> Fraction:
        """How often a source was read: of a view, by itself, and by others as often as the whole source on average."""
        own = self.consumed.get(name, 0)
        base = self.sources[name].view_of
        epochs = Fraction(own, self.sources[name].tokens)
        if base is None:
            return epochs
        return epochs + Fraction(self.consumed.get(base, 0) - own, self.sources[base].tokens)
