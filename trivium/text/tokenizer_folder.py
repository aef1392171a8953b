"""A path or a name on the Hub -> the files of a tokenizer, and the names of its special tokens."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.errors import SourceError
from trivium.files import parse_json, read_bounded
from trivium.paths import suggestion
from trivium.text.hub import UNREACHABLE, is_unreached
from trivium.text.roles import ROLES, Role
from trivium.text.tokenizer import AwaitedTokenizerError, replace_surrogates

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
MARKERS_KEY = "trivium_markers"  # in a tokenizer_config.json that was exported: names by role
MAX_FILE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """A tokenizer.json, the names in the files beside it, and the source of its chat template."""

    path: Path
    token_names: Mapping[str, str]  # such as bos_token: "<s>"
    template: str | None
    markers: Mapping[Role, str]  # names by role, in a folder that trivium exported

    @property
    def role_names(self) -> dict[Role, str]:
        """The names of bos, eos and the markers, as far as the folder declares them."""
        roles: tuple[Role, ...] = ("bos", "eos")
        names = {role: self.token_names.get(f"{role}_token") for role in roles} | {**self.markers}
        return {role: name for role, name in names.items() if name is not None}


def find_folder(where: str, *, fetch: bool = True) -> TokenizerFolder:
    """The files behind `tokenizer.path`: a tokenizer.json, its folder, or a name on the Hub."""
    path = Path(where)
    if path.is_file():
        return TokenizerFolder(path, {}, None, {})
    if not path.is_dir():
        path = _from_hub(where, fetch=fetch)
    if not (path / "tokenizer.json").exists():
        raise SourceError(f"tokenizer.path: {path} has no tokenizer.json. Write the path of a tokenizer.json.")
    config = {**_read_json(path / "special_tokens_map.json"), **_read_json(path / "tokenizer_config.json")}
    named = {key: name for key, value in config.items() if key.endswith("_token") and (name := _token_name(value))}
    jinja = path / "chat_template.jinja"
    template = read_text(jinja) if jinja.exists() else template_in(config)
    markers = config.get(MARKERS_KEY)
    known = {role: str(markers[role]) for role in ROLES if role in markers} if isinstance(markers, dict) else {}
    return TokenizerFolder(path / "tokenizer.json", named, template, known)


def template_in(config: Mapping[str, Any]) -> str | None:
    """The chat template of a tokenizer_config.json: text, or a list of which the one called "default" counts."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def read_template(where: str) -> str:
    """The chat template in a file: Jinja, or JSON with a chat_template."""
    path = Path(where)
    if not path.is_file():
        raise SourceError(
            f"tokenizer.chat_template: {path} does not exist.{suggestion(path)} Write the path of a Jinja file."
        )
    template = template_in(_read_json(path)) if path.suffix == ".json" else read_text(path)
    if template is None:
        raise SourceError(f"tokenizer.chat_template: {path} has no chat_template. Write the path of a Jinja file.")
    return template


def read_text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError(f"{path}: is not text in UTF-8. Name the tokenizer's own file.") from None
    except ValueError as reason:
        raise SourceError(f"{path}: cannot be read: {reason}. Name another file.") from None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where the file does not exist."""
    if not path.exists():
        return {}
    try:
        content = parse_json(read_text(path))
    except ValueError as error:
        raise SourceError(f"{path}: is not JSON: {error}. Fix it, or remove it.") from None
    return content if isinstance(content, dict) else {}


def _token_name(value: object) -> str | None:
    """`"<s>"`, or `{"content": "<s>", ...}`."""
    name = value.get("content") if isinstance(value, dict) else value
    # Half a surrogate pair, which JSON may hold, is not text.
    return name if isinstance(name, str) and name == replace_surrogates(name) else None


def _from_hub(name: str, *, fetch: bool) -> Path:
    """The folder of a name on the Hub, from the local cache first, so that a tokenizer once read never changes."""
    missing = f"tokenizer.path: {name} does not exist"
    hint = suggestion(name)
    if not HUB_NAME.fullmatch(name) or name.endswith((".json", ".model", ".tiktoken")):
        raise SourceError(f"{missing}.{hint} Write the path of a tokenizer.json or its folder.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise SourceError(f"{missing}, and a name on the Hub needs the package huggingface_hub.") from None
    for local in (True, False) if fetch else (True,):
        try:
            folder = Path(snapshot_download(name, allow_patterns=list(FILES), local_files_only=local))
        except Exception as error:  # of the network, the Hub or the cache: in any case there is no folder
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            unreached = is_unreached(error)
            continue
        if (folder / "tokenizer.json").is_file():
            return folder
        reason, unreached = "it has no tokenizer.json", False
    if not fetch:
        raise AwaitedTokenizerError(
            f"tokenizer.path: {name} is not on disk.{hint} If it is a name on the Hub, trivium prepare CONFIG fetches "
            f"it; else trivium tokenizer train CONFIG --out {name} makes one."
        )
    if unreached:
        raise SourceError(f"{missing}.{hint} If it is a name on the Hub: {UNREACHABLE}.")
    raise SourceError(f"{missing}, and the Hub does not provide it: {reason.rstrip('.')}.{hint} Write a path on disk.")
