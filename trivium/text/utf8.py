"""Text -> UTF-8, whatever the text: JSON may hold halves of surrogate pairs, which no tokenizer takes."""


def utf8(text: str) -> bytes:
    """The text in UTF-8; half a surrogate pair becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return whole(text).encode()


def whole(text: str) -> str:
    """The text with every half of a surrogate pair replaced by U+FFFD, and two halves joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
