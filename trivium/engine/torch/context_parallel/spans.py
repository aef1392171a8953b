"""Whole rows' segments -> the spans of documents that a rank has; their price is that of `span_attention`."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from trivium.engine.torch.attention import PLAIN, Segments, document_starts
from trivium.engine.torch.context_parallel.slots import SlotShare
from trivium.engine.torch.span_attention import Span, attend_spans
from trivium.model.spec import AttentionSpec
from trivium.rows.batch import PADDING


@dataclass(frozen=True, slots=True)
class Spans:
    """All spans of a rank, in rows whose padding gathers nothing."""

    each: tuple[Span, ...]

    @classmethod
    def of(cls, segments: Segments, share: SlotShare) -> "Spans":
        """Spans where the row, the stretch or the segment changes, of whole rows' segments."""
        starts, stretch = share.of(document_starts(segments)), share.stretch
        own = share.of(segments, PADDING)
        begins = np.ones(own.shape, bool)
        begins[:, 1:] = own[:, 1:] != own[:, :-1]
        begins[:, stretch] = True
        at = np.flatnonzero(begins)
        spans = []
        for begin, length in zip(at.tolist(), np.diff(at, append=own.size).tolist(), strict=True):
            row, place = divmod(begin, share.slots)
            if own[row, place] != PADDING:
                slot = share.firsts[place // stretch] + place % stretch
                spans.append(Span(slice(row, row + 1), place, slot, length, int(starts[row, place])))
        return cls(tuple(spans))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, how: AttentionSpec = PLAIN) -> Tensor:
        """Queries of the rank's slots, keys and values of whole rows."""
        return attend_spans(queries, keys, values, self.each, how)
