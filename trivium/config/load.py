"""A TOML file and `key=value` overrides -> Config, or every problem at once.

Opens the config file and nothing else. What does not validate is taken out and reported, and the rest
is still checked, so that one wrong key hides no other problem.
"""

import copy
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from trivium.config.check import check
from trivium.config.dialects import translate
from trivium.config.keys import Path, nearest
from trivium.config.problems import explain, where, written_path
from trivium.config.schema import Config
from trivium.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked config, the raw tables behind it, and what the user should know about them."""

    config: Config
    raw: dict[str, Any]
    warnings: tuple[Problem, ...]


def load_config(
    path: str | FilePath,
    overrides: Sequence[str] = (),
    *,
    dialect: str | None = None,
    world_size: int | None = None,
) -> Config:
    """Read, translate and check a config; raises ConfigError with every problem."""
    return load(path, overrides, dialect=dialect, world_size=world_size).config


def load(
    path: str | FilePath,
    overrides: Sequence[str] = (),
    *,
    dialect: str | None = None,
    world_size: int | None = None,
) -> Loaded:
    """As `load_config`, with the raw tables and the warnings."""
    path = FilePath(path)
    translated = translate(read_toml(path), path.name, dialect, world_size)
    raw = copy.deepcopy(translated.raw)
    for override in overrides:
        apply_override(raw, override)
    config, warnings = validate(raw, path.name)
    return Loaded(config, raw, (*translated.notes, *warnings))


def read_toml(path: FilePath) -> dict[str, Any]:
    """The file's tables; a file that is missing or no TOML is a ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([Problem(str(path), "no such file. Give the path of a config.")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem(str(path), "is not UTF-8 text. Save it as UTF-8.")]) from None
    except OSError as error:
        raise ConfigError([Problem(str(path), f"cannot be read: {error.strerror}.")]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Problem(str(path), f"is not valid TOML: {error}.")]) from None


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one key: `stages.0.tokens=1B`, `stages.long.seq_len=4096`, `run.name=other`."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        message = "is no override. Write key=value, for example stages.0.tokens=1B."
        raise ConfigError([Problem(f'"{override}"', message)])
    container: Any = raw
    for part in parts[:-1]:
        container = _enter(container, part, override)
    if isinstance(container, list):
        message = "names a whole stage. Name one of its keys, for example stages.0.steps=10."
        raise ConfigError([Problem(f'"{override}"', message)])
    container[parts[-1]] = _override_value(text.strip())


def _enter(container: Any, part: str, override: str) -> Any:
    if isinstance(container, list):
        names = [str(stage.get("name")) for stage in container if isinstance(stage, dict)]
        if part.isdecimal() and int(part) < len(container):
            return container[int(part)]
        if part in names:
            return container[names.index(part)]
        known = [*names, *(str(number) for number in range(len(container)))]
        raise ConfigError([Problem(f'"{override}"', f'there is no stage "{part}". {nearest(part, known)}')])
    inner = container.setdefault(part, {})
    if not isinstance(inner, dict | list):
        # A short form gives way to its table: fade = "50M", then stages.1.fade.shape=cosine.
        message = f'"{part}" is {inner!r} in the file, which has no keys. Override it whole.'
        raise ConfigError([Problem(f'"{override}"', message)])
    return inner


def _override_value(text: str) -> Any:
    """A TOML value where it is one, else the text itself: `1B` needs no quotes on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def validate(raw: dict[str, Any], file: str) -> tuple[Config, list[Problem]]:
    """The checked config and its warnings; ConfigError with every problem."""
    problems: dict[Path, Problem] = {}
    sound = copy.deepcopy(raw)
    while True:
        try:
            config = Config.model_validate(sound)
            break
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                path = written_path(detail["loc"], sound)
                problems.setdefault(path, Problem(where(file, path), explain(detail, path, sound)))
            for path in {written_path(detail["loc"], sound) for detail in error.errors(include_url=False)}:
                _take_out(sound, path)
    found = check(config, raw, file)
    faulty = [*problems.values(), *found.problems]
    if faulty:
        raise ConfigError(list(dict.fromkeys(faulty)))
    return config, found.warnings


def _take_out(raw: Any, path: Path) -> None:
    """Remove one key; an element of a list takes its whole list with it, a stage becomes an empty table."""
    for part in path[:-1]:
        raw = raw.get(part) if isinstance(raw, dict) else raw[part]
        if raw is None:
            return
    if isinstance(raw, list):
        raw[int(path[-1])] = {}
    else:
        raw.pop(path[-1], None)
