"""What the Hub's packages raise -> whether the Hub was not reached, which is another matter than a wrong name."""

from collections.abc import Iterator

UNREACHED = ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout")
UNREACHABLE = (
    "the Hub cannot be reached from here, and it was not fetched before. Run trivium prepare CONFIG where there is a "
    "network, with HF_HOME and TRIVIUM_CACHE in folders that this machine reads too"
)


def is_unreached(error: BaseException) -> bool:
    """Whether an error comes from a network that is absent, switched off or too slow; packages are not imported."""
    return any(isinstance(each, ConnectionError) or type(each).__name__ in UNREACHED for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
