"""Conversations as they are: HuggingFaceTB/smol-smoltalk, or a file of one's own."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.tasks.task import Conversation, Kind, Task


@dataclass(frozen=True)
class SmolTalk(Task):
    """Talk about anything; nothing in it is right or wrong."""

    name: ClassVar[str] = "smoltalk"
    kind: ClassVar[Kind] = "talk"
    dataset: ClassVar[str] = "HuggingFaceTB/smol-smoltalk"

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """`{"messages"}`; the row's other fields are skipped."""
        return {"messages": row.get("messages")}


@dataclass(frozen=True)
class JsonLinesTask(SmolTalk):
    """A file of one's own conversations."""

    name: ClassVar[str] = "jsonl"
    dataset: ClassVar[str] = ""
