"""All content of a config's token files, read again and compared with its manifest."""

from collections.abc import Iterator
from pathlib import Path

from trivium.config.schema import Config
from trivium.errors import PlanError, Problem, SourceError
from trivium.sources.open import locate_sources
from trivium.tokenfiles.manifest import MANIFEST_NAME, Manifest, measure, read_manifest, verify, write_manifest
from trivium.tokenfiles.open import TokenFile


def verify_sources(config: Config, file: str, *, write: bool) -> Iterator[str]:
    """A line for each source that matches its manifest; PlanError with every file that does not."""
    problems: list[Problem] = []
    for name, _, located in locate_sources(config, problems):
        if located.gap is not None:
            problems.append(Problem(f"sources.{name}", str(located.gap)))
            continue
        try:
            found, line = _verify_one(located.files, located.folder, write=write)
            problems += [Problem(f"sources.{name}", str(problem)) for problem in found]
            if not found:
                yield f"{name}: {line}"
        except SourceError as error:
            problems.append(Problem(f"sources.{name}", str(error)))
    if problems:
        raise PlanError([Problem(f"{file}: {problem.where}", problem.what) for problem in problems])


def _verify_one(files: tuple[TokenFile, ...], folder: Path | None, *, write: bool) -> tuple[tuple[Problem, ...], str]:
    if folder is not None and (folder / MANIFEST_NAME).is_file():
        manifest = read_manifest(folder / MANIFEST_NAME)
        return verify(manifest, files), f"{_counts(manifest)}: match {MANIFEST_NAME}."
    manifest = measure(files)
    if folder is None:
        return (
            (),
            f"{_counts(manifest)}: readable; only a source that is one folder has a {MANIFEST_NAME} to compare with.",
        )
    if not write:
        return (
            (),
            f"{_counts(manifest)}: readable; no {MANIFEST_NAME} to compare them with (--write writes one).",
        )
    write_manifest(manifest, folder / MANIFEST_NAME)
    return (), f"{_counts(manifest)}: readable; written to {folder / MANIFEST_NAME}."


def _counts(manifest: Manifest) -> str:
    files = len(manifest.files)
    return f"{files:,} file{'s' if files != 1 else ''}, {manifest.documents:,} documents, {manifest.tokens:,} tokens"
