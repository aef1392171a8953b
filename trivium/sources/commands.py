"""What `trivium prepare` and `trivium verify` do: all sources of a config tokenised, or some paths; or all read again.

Verifying reads all content of token files, and compares it with what is known of it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trivium.config.schema import Config
from trivium.config.schema import Tokenizer as TokenizerConfig
from trivium.config.sources import PreparedSource
from trivium.errors import PlanError, Problem, SourceError, UsageError
from trivium.prepare.encode import Recipe
from trivium.prepare.prepare import prepare
from trivium.prepare.shards import FilesWork
from trivium.sources.locate import LocateSettings
from trivium.sources.open import locate_sources
from trivium.sources.provide import provide_tokenizer
from trivium.text.roles import Role
from trivium.textfiles.bad_lines import MOST_BAD
from trivium.textfiles.inputs import find_inputs
from trivium.tokenfiles.manifest import MANIFEST_NAME, Manifest, measure, read_manifest, verify, write_manifest
from trivium.tokenfiles.open import TokenFile
from trivium.tokenfiles.write import WrittenFormat

ROLES: dict[str, tuple[Role, ...]] = {"bos": ("bos",), "eos": ("eos",), "none": ()}


def prepare_paths(
    paths: Sequence[str],
    out: Path,
    tokenizer: str | None,
    column: str,
    add: Sequence[str] | None,
    bad_lines: float | None,
    workers: int | None,
    written: WrittenFormat,
) -> str:
    """Token files of some paths in a folder of the user's choice; a line with what is in it."""
    if tokenizer is None:
        raise UsageError("prepare: --out needs a tokenizer too. Give --tokenizer tokenizer.json, or --tokenizer bytes.")
    for each in add or ():
        if each not in ROLES:
            raise UsageError(f'prepare: --add "{each}" is not known. Give bos, eos or none.')
    config = TokenizerConfig(kind="bytes") if tokenizer == "bytes" else TokenizerConfig(path=tokenizer)
    added = None if not add else tuple(dict.fromkeys(role for each in add for role in ROLES[each]))
    recipe = Recipe("text", LocateSettings(config, prepare=True).tokenizer, config, column, added, format=written)
    most_bad = MOST_BAD if bad_lines is None else bad_lines
    work = FilesWork(find_inputs(paths))
    return f"{out}: {prepare(work, recipe, out, title=str(out), workers=workers, most_bad=most_bad)}"


def prepare_sources(config: Config, bad_lines: float | None, workers: int | None) -> Iterator[str]:
    """Fetch and prepare what is not tokens yet; a line for each source, PlanError with every one that cannot be."""
    chosen = {name: source for name, source in config.sources.items() if isinstance(source, PreparedSource)}
    if bad_lines is not None:
        update = {"bad_lines": bad_lines}
        chosen = {name: source.model_copy(update=update) for name, source in chosen.items()}
    if not chosen:
        yield "nothing to prepare: every source holds tokens already."
    provide_tokenizer(config)
    problems: list[Problem] = []
    only = config.model_copy(update={"sources": chosen})
    for name, _, located in locate_sources(only, problems, prepare=True, workers=workers):
        if located.gap is not None:
            problems.append(Problem(f"sources.{name}", str(located.gap)))
            continue
        documents = sum(len(each.ends) for each in located.files)
        tokens = sum(len(each.tokens) for each in located.files)
        yield f"{name}: {documents:,} documents, {tokens:,} tokens in {located.folder}"
    if problems:
        raise PlanError(problems)


def verify_sources(config: Config, *, write: bool) -> Iterator[str]:
    """A line for each source that matches its manifest; PlanError with every file that is not."""
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
        raise PlanError(problems)


def _verify_one(files: tuple[TokenFile, ...], folder: Path | None, *, write: bool) -> tuple[tuple[Problem, ...], str]:
    if folder is not None and (folder / MANIFEST_NAME).is_file():
        manifest = read_manifest(folder / MANIFEST_NAME)
        return verify(manifest, files), f"{_counts(manifest)}: match {MANIFEST_NAME}."
    manifest = measure(files)
    if folder is None:
        found = f"only a source that is one folder has a {MANIFEST_NAME} to compare with"
    elif not write:
        found = f"no {MANIFEST_NAME} to compare them with (--write writes one)"
    else:
        write_manifest(manifest, folder / MANIFEST_NAME)
        found = f"written to {folder / MANIFEST_NAME}"
    return (), f"{_counts(manifest)}: readable; {found}."


def _counts(manifest: Manifest) -> str:
    files = len(manifest.files)
    return f"{files:,} file{'s' if files != 1 else ''}, {manifest.documents:,} documents, {manifest.tokens:,} tokens"
