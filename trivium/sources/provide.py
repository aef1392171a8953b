"""A config's tokenizer that is not on disk -> fetched from the Hub, or trained on the config's sources of text.

What prepares does this first, so that everything after it opens files alone. Fetching takes seconds, training about a
minute for each 200 MB of text; a tokenizer that is on disk costs nothing.
"""

from contextlib import suppress
from pathlib import Path

from trivium.config.schema import Config
from trivium.config.sources import TextSource
from trivium.errors import PlanError, Problem, SourceError
from trivium.text.tokenizer import open_tokenizer
from trivium.textfiles.progress import say


def provide_tokenizer(config: Config) -> None:
    """Fetch or train the tokenizer, unless it is on disk; why the Hub has none is told by what needs it."""
    asked = config.tokenizer
    if asked is None or asked.path is None or Path(asked.path).exists():
        return
    if asked.train is None:
        with suppress(SourceError):
            open_tokenizer(asked)
        return
    from trivium.text.train_tokenizer import train_on_sources

    if not any(isinstance(source, TextSource) for source in config.sources.values()):
        what = 'no source of kind = "text" has anything to train it on. Name a tokenizer that exists'
        raise PlanError([Problem("tokenizer.train", f'{what}, or write tokenizer.kind = "bytes".')])
    try:
        written = train_on_sources(config, Path(asked.path), asked.train.vocab)
    except SourceError as error:
        raise PlanError([Problem("tokenizer.train", str(error))]) from error
    for line in written.skipped:
        say(line)
    say(str(written))
