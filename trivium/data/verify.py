"""All content of a config's token files, read again and held against what is known of it."""

from collections.abc import Iterator, Mapping

from trivium.config.sources import Source, TokensSource
from trivium.data.manifest import manifest_of, verify
from trivium.data.source import is_there, manifest_folder, open_token_files
from trivium.errors import PlanError, Problem


def verify_sources(sources: Mapping[str, Source]) -> Iterator[str]:
    """A line for each source that is as its manifest says; PlanError with every file that is not."""
    problems: list[Problem] = []
    for name, source in sources.items():
        if not isinstance(source, TokensSource):
            continue
        if not is_there(source):
            problems.append(Problem(f"sources.{name}", "is not on disk, so that nothing can be verified."))
            continue
        files = open_token_files(source)
        manifest = manifest_of(files, manifest_folder(source))
        found = verify(manifest, files)
        problems += [Problem(f"sources.{name}", str(problem)) for problem in found]
        if not found:
            counts = f"{len(files):,} files, {manifest.documents:,} documents, {manifest.tokens:,} tokens"
            yield f"{name}: {counts}: as they were."
    if problems:
        raise PlanError(problems)
