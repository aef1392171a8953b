"""All content of a config's token files, read again and held against what is known of it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from trivium.config.sources import Source, TokensSource
from trivium.data.manifest import NAME, Manifest, measure, read_manifest, verify, write_manifest
from trivium.data.source import is_there, manifest_folder, open_token_files
from trivium.data.tokens import TokenFile
from trivium.errors import PlanError, Problem, SourceError


def verify_sources(sources: Mapping[str, Source], file: str, *, write: bool) -> Iterator[str]:
    """A line for each source that is as its manifest says; PlanError with every file that is not."""
    problems: list[Problem] = []
    for name, source in sources.items():
        if not isinstance(source, TokensSource):
            continue
        where = f"{file}: sources.{name}"
        try:
            if not is_there(source):
                raise SourceError("is not on disk, so that nothing can be verified.")
            files = open_token_files(source)
            folder = manifest_folder(source)
            found, line = _verify_one(files, folder, write=write)
            problems += [Problem(where, str(problem)) for problem in found]
            if not found:
                yield f"{name}: {line}"
        except SourceError as error:
            problems.append(Problem(where, str(error)))
    if problems:
        raise PlanError(problems)


def _verify_one(files: tuple[TokenFile, ...], folder: Path | None, *, write: bool) -> tuple[tuple[Problem, ...], str]:
    if folder is not None and (folder / NAME).is_file():
        manifest = read_manifest(folder / NAME)
        return verify(manifest, files), f"{_counts(manifest)}: as {NAME} says."
    manifest = measure(files)
    if folder is None:
        return (), f"{_counts(manifest)}: readable; only a source that is one folder has a {NAME} to compare with."
    if not write:
        return (), f"{_counts(manifest)}: readable; there is no {NAME} to compare them with (--write keeps one)."
    write_manifest(manifest, folder / NAME)
    return (), f"{_counts(manifest)}: readable; written to {folder / NAME}."


def _counts(manifest: Manifest) -> str:
    files = len(manifest.files)
    return f"{files:,} file{'s' if files != 1 else ''}, {manifest.documents:,} documents, {manifest.tokens:,} tokens"
