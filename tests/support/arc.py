"""A folder of questions with choices, in the form of allenai/ai2_arc."""

import json
from pathlib import Path


def write_arc(folder: Path, questions: int, letters: str = "ABCD") -> Path:
    """Questions about numbers, of which each letter is right in turn."""
    folder.mkdir()
    rows = [
        {
            "question": f"What is {number}?",
            "choices": {"text": [f"it is {letter}" for letter in letters], "label": list(letters)},
            "answerKey": letters[number % len(letters)],
        }
        for number in range(questions)
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
