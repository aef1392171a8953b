"""cais/mmlu: questions of 57 subjects with four choices."""

from dataclasses import dataclass
from typing import Any, ClassVar

from trivium.errors import SourceError
from trivium.tasks.choice import ChoiceTask, ask
from trivium.tasks.task import Conversation


@dataclass(frozen=True)
class Mmlu(ChoiceTask):
    """Trained on its auxiliary questions, tested on all subjects."""

    name: ClassVar[str] = "mmlu"
    dataset: ClassVar[str] = "cais/mmlu"
    subsets: ClassVar[tuple[str, ...]] = ("all", "auxiliary_train")

    def conversation(self, row: dict[str, Any]) -> Conversation:
        """`{"question", "subject", "choices", "answer": 0 to 3}`; the auxiliary ones stand under "train"."""
        row = row.get("train") or row
        letters = "ABCD"[: len(row["choices"])]
        return {**ask(row["question"], letters, row["choices"], letters[row["answer"]]), "subject": row["subject"]}

    @staticmethod
    def where(split: str, subset: str | None) -> tuple[str | None, str]:
        """Each subset has one of the splits."""
        of_split = "auxiliary_train" if split == "train" else "all"
        if subset not in (None, of_split):
            raise SourceError(
                f'mmlu: the subset "{subset}" has no split "{split}". Write subset = "{of_split}", or another split.'
            )
        return of_split, split
