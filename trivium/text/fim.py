"""Fill-in-the-middle: texts cut in three and put in another order, so that a model learns to write what is missing.

A text is cut at two of its characters, into prefix, middle and suffix, and each part is tokenised by itself:

    PSM    <prefix> prefix <suffix> suffix <middle> middle      the order of StarCoder and DeepSeek
    SPM    <prefix> <suffix> suffix <middle> prefix middle      StarCoder's second one

Which texts, in which order and where they are cut is decided by a hash of the text alone: not by a seed, a file or a
worker, so that the same text is cut alike wherever it is, and what was prepared can be found again. Every text of its
source keeps its number, and has three tokens more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trivium.config.keys import listed
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import Fim as FimConfig
from trivium.errors import SourceError
from trivium.text.tokenizer import Tokenizer, replace_surrogates

VERSION = 1  # of where texts are cut
# The tokens before prefix, suffix and middle, as tokenizers name them.
USUAL_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen; the names that trivium gives
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
)
Ids = NDArray[Any]


class CutText(NamedTuple):
    """The parts that a text is tokenised in: one, or prefix, middle and suffix."""

    parts: tuple[str, ...]
    suffix_first: bool = False


@dataclass(frozen=True, slots=True)
class Fim:
    """How often texts are cut, and the tokens that mark their parts; plain values."""

    rate: float
    spm: float
    names: tuple[str, str, str]  # of the tokens before prefix, suffix and middle
    ids: tuple[int, int, int]

    @property
    def content(self) -> list[Any]:
        """Plain values that change with the tokens of any text."""
        return ["fim", VERSION, self.rate, self.spm, self.names, self.ids]

    def cut(self, text: str) -> CutText:
        """The parts of a text; it stays whole where it is not chosen, is empty, or has the name of a marking token."""
        text = replace_surrogates(text)
        digest = blake2b(text.encode(), digest_size=32, person=b"trivium fim").digest()
        chosen, order, *ends = (int.from_bytes(digest[at : at + 8], "little") for at in range(0, 32, 8))
        if not text or chosen >= self.rate * 2**64 or any(name in text for name in self.names):
            return CutText((text,))
        first, last = sorted(end * (len(text) + 1) >> 64 for end in ends)
        return CutText((text[:first], text[first:last], text[last:]), order < self.spm * 2**64)

    def join(self, cut: CutText, ids: Sequence[Ids]) -> Ids:
        """The tokens of a text from those of its parts."""
        if len(ids) == 1:
            return ids[0]
        before, middle, behind = ids
        mark_prefix, mark_suffix, mark_middle = (np.array([number], np.uint32) for number in self.ids)
        if cut.suffix_first:
            return np.concatenate((mark_prefix, mark_suffix, behind, mark_middle, before, middle))
        return np.concatenate((mark_prefix, before, mark_suffix, behind, mark_middle, middle))

    def encode(self, texts: Sequence[str], encode: Callable[[Sequence[str]], Sequence[Ids]]) -> list[Ids]:
        """The tokens of each text; all parts are encoded by one call."""
        cuts = [self.cut(text) for text in texts]
        ids = iter(encode([part for cut in cuts for part in cut.parts]))
        return [self.join(cut, [next(ids) for _ in cut.parts]) for cut in cuts]


def find_fim(asked: FimConfig | None, tokenizer: Tokenizer, config: TokenizerConfig | None) -> Fim | None:
    """What a source's `fim` asks for, with the tokenizer's tokens; SourceError where it has none."""
    if asked is None:
        return None
    named = None if config is None else config.fim_tokens
    for names in USUAL_NAMES if named is None else (named,):
        prefix, suffix, middle = (_token_id(tokenizer, name) for name in names)
        if prefix is None or suffix is None or middle is None or len({prefix, suffix, middle}) < 3:
            continue
        return Fim(asked.rate, asked.spm, names, (prefix, suffix, middle))
    if named is None:
        what = "fim: the tokenizer has no tokens for fill-in-the-middle by a usual name, such as <|fim_prefix|>"
        raise SourceError(f"{what}. Name its own: tokenizer.fim_tokens = [PREFIX, SUFFIX, MIDDLE], or leave fim out.")
    missing = [f'"{name}"' for name in named if _token_id(tokenizer, name) is None]
    what = f"{listed(missing)} {'are not tokens' if len(missing) > 1 else 'is not a token'} of it"
    what = what if missing else "names one token twice"
    raise SourceError(f"tokenizer.fim_tokens: {what}. Write the tokens before prefix, suffix and middle.")


def _token_id(tokenizer: Tokenizer, name: str) -> int | None:
    from trivium.text.file_tokenizer import FileTokenizer
    from trivium.text.tiktoken_file import TiktokenTokenizer

    if isinstance(tokenizer, FileTokenizer):
        found: int | None = tokenizer.inner.token_to_id(name)
        return found
    return tokenizer.special_tokens.get(name) if isinstance(tokenizer, TiktokenTokenizer) else None
