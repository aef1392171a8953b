"""Files that are one document each -> whether they are text, and how many bytes of it."""

from collections.abc import Sequence

from trivium.init.found import Estimate, FoundFile
from trivium.textfiles.decompress import COMPRESSED, open_input
from trivium.textfiles.read import reading

HEAD_BYTES = 1 << 16  # that are read of a file
TRIED = 400  # files of a source
TEXTS, TEXT_BYTES = 60, 4096  # that are kept, and characters of each


def read_head(file: FoundFile) -> bytes:
    """The first bytes of a file, decompressed; SourceError where it is damaged."""
    with reading(file.path), open(file.path, "rb") as raw:
        return open_input(file.path, raw).read(HEAD_BYTES)


def decoded(content: bytes) -> str | None:
    """The text of a file's first bytes, which may end within a character; None where it is not UTF-8, or binary."""
    if b"\0" in content:
        return None
    for cut in range(4):  # a character has four bytes at most
        try:
            return content[: len(content) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            if len(content) < HEAD_BYTES:
                return None
    return None


def is_text(file: FoundFile) -> bool:
    """Whether a file begins like one, by its first bytes."""
    return decoded(read_head(file)) is not None


def estimate_texts(files: Sequence[FoundFile]) -> Estimate:
    """What whole files hold, by some of them."""
    tried = files[:: max(1, len(files) // TRIED)]
    texts = []
    bad = 0
    for file in tried:
        text = decoded(read_head(file))
        bad += text is None
        if text:
            texts.append(text[:TEXT_BYTES])
    size = sum(file.size * (4 if file.path.suffix in COMPRESSED else 1) for file in files)  # text shrinks to a quarter
    part = bad / max(1, len(tried))
    return Estimate(len(files), round(size * (1 - part)), bad=part, texts=tuple(texts[:: max(1, len(texts) // TEXTS)]))
