"""A file's tables and `key=value` overrides -> Config, or every problem at once.

Opens the config file and nothing else. What does not validate is taken out and reported, and the rest
is still checked, so that one wrong key hides no other problem.
"""

import copy
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from trivium.config.dialects import translate
from trivium.config.dialects.translation import Notes, Translation
from trivium.config.engine import Engine
from trivium.config.keys import MISSING, Path, nearest
from trivium.config.limits import DEEPEST, read_config_text, refuse_beyond_limits
from trivium.config.lines import KeyPlaces, overridden_keys, override_path
from trivium.config.problems import explain, show_value, written_path
from trivium.config.rules.check import check
from trivium.config.schema import Config
from trivium.config.stages import EITHER
from trivium.errors import ConfigError, Problem
from trivium.paths import suggestion


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked config, the raw tables behind it, and what the user should know about them."""

    config: Config
    raw: dict[str, Any]
    warnings: tuple[Problem, ...]
    notes: Notes  # of a config that was translated
    places: KeyPlaces
    path: FilePath


def load_config(
    path: str | FilePath, overrides: Sequence[str] = (), *, dialect: str | None = None, world_size: int | None = None
) -> Config:
    """Read, translate and check a config; raises ConfigError with every problem."""
    return load(path, overrides, dialect=dialect, world_size=world_size).config


def load(
    path: str | FilePath, overrides: Sequence[str] = (), *, dialect: str | None = None, world_size: int | None = None
) -> Loaded:
    """As `load_config`, with the raw tables and the warnings."""
    path = FilePath(path)
    text = read_text(path)
    tables = parse(text, path)
    places = KeyPlaces(path.name, text, is_yaml(path))
    with places.named():
        translated = translate(tables, path.name, dialect, world_size)
    places = replace(places, overridden=overridden_keys(overrides, translated.raw))
    with places.named():
        return _load(translated, path, overrides, places)


def _load(translated: Translation, path: FilePath, overrides: Sequence[str], places: KeyPlaces) -> Loaded:
    raw = copy.deepcopy(translated.raw)
    apply_overrides(raw, overrides)
    in_file = replace(places, overridden=frozenset())  # an override changes our tables, and not another tool's
    problems = [in_file.name(problem) for problem in translated.problems]
    problems += [key.problem for key in translated.needed if key.is_missing(raw)]
    try:
        config, warnings = validate(raw, path.name)
    except ConfigError as error:
        # A key that could not be translated, or that the user must give, is missing from our tables too: said once.
        rest = error.problems if not problems else [one for one in error.problems if not _is_absence(one)]
        raise ConfigError([*problems, *rest]) from None
    if problems:
        raise ConfigError(problems)
    return Loaded(config, raw, tuple(map(places.name, warnings)), translated.notes, places, path)


def _is_absence(problem: Problem) -> bool:
    """Whether the problem is that something was not written."""
    return problem.what.startswith(("is missing", "is absent", "is empty", "has no size", "there is none"))


def read_tables(path: FilePath) -> dict[str, Any]:
    """The file's tables; a file that is missing, or neither TOML nor YAML, is a ConfigError."""
    return parse(read_text(path), path)


def read_text(path: FilePath) -> str:
    """A config file's text; ConfigError where it cannot be read."""
    try:
        return read_config_text(path)
    except FileNotFoundError:
        what = f"no such file.{suggestion(path)} Give the path of a config."
    except UnicodeDecodeError:
        what = "is not UTF-8 text. Save it as UTF-8."
    except OSError as error:
        what = f"cannot be read: {error.strerror}. Give the path of a config."
    except ValueError as reason:
        what = str(reason)
    raise ConfigError([Problem(str(path), what)])


def parse(text: str, path: FilePath) -> dict[str, Any]:
    """The tables of a text, by the name of its file; ConfigError where it is neither TOML nor YAML."""
    try:
        if is_yaml(path):
            from trivium.config.read_yaml import parse_yaml

            return parse_yaml(text)
        return parse_toml(text)
    except ValueError as reason:
        raise ConfigError([Problem(str(path), str(reason))]) from None


def is_yaml(path: FilePath) -> bool:
    """Whether a file is YAML by its name; all others are TOML."""
    return path.suffix.lower() in (".yaml", ".yml")


def parse_toml(text: str) -> dict[str, Any]:
    """TOML's tables; ValueError with the reason, the line and a caret below the place where it is not TOML."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", reason)
        if place is None:
            raise ValueError(f"is not valid TOML: {reason}.") from None
        line, column = int(place[1]), int(place[2])
        shown = text.split("\n")[line - 1].expandtabs(1)
        caret = " " * (column - 1) + "^"
        reason = reason.removesuffix(place[0])
        raise ValueError(f"is not valid TOML: {reason}, in line {line}.\n    {shown}\n    {caret}") from None
    except RecursionError:
        raise ValueError(f"is nested more than {DEEPEST} levels deep. Write it flat.") from None
    except ValueError:  # of Python's `int`
        raise ValueError("has a whole number beyond 64 bits. Write a smaller one.") from None
    refuse_beyond_limits(tables)
    return tables


def peek_engine(path: str | FilePath, overrides: Sequence[str] = ()) -> Engine:
    """The engine of a config, before the config is checked; the defaults where it cannot be read."""
    try:
        raw = read_tables(FilePath(path))
        apply_overrides(raw, [override for override in overrides if override.startswith("engine.")])
        return Engine.model_validate({key: raw["engine"][key] for key in ("name", "device") if key in raw["engine"]})
    except (ConfigError, ValidationError, KeyError, TypeError):
        return Engine()


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set keys: `stages.0.tokens=1B`, `stages.long.seq_len=4096`, `run.name=other`.

    `stages[0].tokens=1B` is the same as with a dot; `model.rope=` removes a key. One of several keys that decide one
    thing takes the place of the others: steps=10 that of the file's tokens.
    """
    problems: list[Problem] = []
    settings: list[tuple[dict[str, Any], str, Any]] = []
    for override in overrides:
        try:
            key, equals, text = override.partition("=")
            settings.append((*_find(raw, override_path(key) if equals else []), _override_value(text.strip())))
        except ValueError as reason:
            problems.append(Problem(f'"{override}"', str(reason)))
    if problems:
        raise ConfigError(problems)
    for table, key, _ in settings:
        for other in {other for ways in EITHER if key in ways for other in ways}:
            table.pop(other, None)
    for table, key, value in settings:
        if value is MISSING:
            table.pop(key, None)
        else:
            table[key] = value


def _find(raw: dict[str, Any], parts: list[str]) -> tuple[dict[str, Any], str]:
    """The table that an override changes, and the key in it; ValueError with the reason why there is none."""
    if not all(parts) or not parts:
        raise ValueError("is not an override. Write key=value, for example stages.0.tokens=1B.")
    if len(parts) > DEEPEST:
        raise ValueError(f"is nested more than {DEEPEST} levels deep. Name a key of the config.")
    found: Any = raw
    for depth in range(1, len(parts)):
        found = _enter(found, parts[:depth])
    if isinstance(found, list):
        raise ValueError("names a whole stage. Name one of its keys, for example stages.0.steps=10.")
    return found, parts[-1]


def _enter(container: Any, parts: list[str]) -> Any:
    """The value one key further down: a table, or the list of stages."""
    part = parts[-1]
    if isinstance(container, list):
        names = [stage.get("name") if isinstance(stage, dict) else None for stage in container]
        known = [name for name in names if isinstance(name, str)]
        if part not in known and not (part.isdecimal() and int(part) < len(container)):
            positions = [str(number) for number in range(len(container))]
            raise ValueError(f'there is no stage "{part}". {nearest(part, [*known, *positions])}')
        inner = container[names.index(part) if part in known else int(part)]
    else:
        inner = container.setdefault(part, {})
    if not isinstance(inner, dict) and parts != ["stages"]:
        whole = ".".join(parts)
        raise ValueError(f"{whole} is {show_value(inner)} in the file, which has no keys. Override {whole} as a whole.")
    if not isinstance(inner, dict | list):
        raise ValueError(f"stages is {show_value(inner)} in the file. Write [[stages]] there.")
    return inner


def _override_value(text: str) -> Any:
    """A TOML value where it is one, else the text itself: `1B` needs no quotes on the command line. MISSING unsets."""
    if not text:
        return MISSING
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        tables = {"value": text}
    except RecursionError:
        raise ValueError(f"is nested more than {DEEPEST} levels deep. Write a plain value.") from None
    except ValueError:  # of Python's `int`
        raise ValueError("is a whole number beyond 64 bits. Write a smaller one.") from None
    refuse_beyond_limits(tables)
    return tables["value"]


def validate(raw: dict[str, Any], file: str) -> tuple[Config, list[Problem]]:
    """The checked config and its warnings; ConfigError with every problem."""
    problems: dict[Path, Problem] = {}
    sound = copy.deepcopy(raw)
    while True:
        try:
            config = Config.model_validate(sound)
            break
        except ValidationError as error:
            details = error.errors(include_url=False)
            for detail in details:
                problems.setdefault(written_path(detail["loc"], sound), explain(detail, file, sound))
            before = copy.deepcopy(sound)
            paths = {written_path(detail["loc"], sound) for detail in details}
            for path in paths:
                _take_out(sound, path)
            if sound == before:  # what is wrong cannot be taken out alone
                for table in {path[0] for path in paths if path}:
                    sound.pop(str(table), None)
            if sound == before:
                raise ConfigError(list(problems.values())) from None
    found = check(config, raw, file)
    faulty = [*problems.values(), *found.problems]
    if faulty:
        raise ConfigError(list(dict.fromkeys(faulty)))
    return config, found.warnings


def _take_out(raw: Any, path: Path) -> None:
    """Remove one key; a stage becomes an empty table, so that the others keep their numbers."""
    for part in path[:-1]:
        raw = raw.get(part) if isinstance(raw, dict) else raw[part]
        if raw is None:
            return
    if isinstance(raw, list):
        raw[int(path[-1])] = {}
    else:
        raw.pop(path[-1], None)
