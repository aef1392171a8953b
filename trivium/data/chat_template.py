"""A folder's own way of writing conversations: its Jinja template, and the names that it may use."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template's text, and the special tokens' names that it is given, such as bos_token."""

    source: str
    names: Mapping[str, str]
    is_asked: bool = False  # in the config, so that it counts even where there are markers
