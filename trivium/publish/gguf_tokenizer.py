"""The tokenizer of a Hugging Face folder -> the keys of a GGUF file, with ids that llama.cpp gives too.

llama.cpp splits text by rules that it knows by name; a byte-level BPE whose split is one of these is written, any other
is refused. Rows of the embedding beyond the tokenizer's ids get names that no text contains.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.errors import UsageError
from trivium.files import read_json
from trivium.text.tiktoken_file import GPT4_PATTERN

if TYPE_CHECKING:
    from gguf import GGUFWriter

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
# A pattern and whether whole words that are tokens are taken without merging -> llama.cpp's name of that split.
SPLITS: Mapping[tuple[str, bool], str] = {
    (GPT4_PATTERN, False): "dbrx",
    (GPT4_PATTERN, True): "llama-bpe",
    (LLAMA3_PATTERN, False): "dbrx",
    (LLAMA3_PATTERN, True): "llama-bpe",
    (QWEN_PATTERN, False): "qwen2",
}
BYTES_ALONE = "gpt-2"  # any split: tokens of one byte are not merged
NO_MERGE = "[none] [none]"  # a file must have one; symbols of several characters never stand in a text of bytes
NORMAL, CONTROL, UNUSED = 1, 3, 5  # llama.cpp's kinds of tokens


def add_tokenizer(writer: "GGUFWriter", folder: Path, vocab: int, out: Path) -> None:
    """Tokens, merges, special tokens and the chat template; UsageError where llama.cpp would give other ids."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        what = "the export has no tokenizer, and a GGUF file without one answers nothing"
        raise UsageError(f"{out}: {what}. Export a Hugging Face folder instead.")
    described = read_json(path)
    config = read_json(folder / "tokenizer_config.json")
    special = {token["content"]: int(token["id"]) for token in described.get("added_tokens") or []}
    numbers = described["model"]["vocab"] | special
    names = {number: name for name, number in numbers.items()}
    controls = set(special.values())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_split(described, out))
    writer.add_token_list([names.get(number, f"[unused {number}]") for number in range(vocab)])
    writer.add_token_types(
        [UNUSED if each not in names else CONTROL if each in controls else NORMAL for each in range(vocab)]
    )
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in described["model"]["merges"]]
    writer.add_token_merges([" ".join(pair) for pair in pairs] or [NO_MERGE])
    for role in ("bos", "eos", "pad"):
        name = config.get(f"{role}_token")
        if name is not None:
            getattr(writer, f"add_{role}_token_id")(numbers[name])
    ends = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id") or []
    turn = [number for number in ends if names[number] != config.get("eos_token")]
    if turn:
        writer.add_eot_token_id(turn[0])
    writer.add_add_bos_token(_begins_with_bos(described))
    writer.add_add_eos_token(False)
    template = folder / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))


def _split(described: Mapping[str, Any], out: Path) -> str:
    """llama.cpp's name of a tokenizer's split."""
    model = described["model"]
    if model.get("type") == "BPE" and described.get("normalizer") is None and not model.get("byte_fallback"):
        if not model["merges"]:
            return BYTES_ALONE
        known = SPLITS.get((_pattern(described.get("pre_tokenizer")), bool(model.get("ignore_merges"))))
        if known is not None:
            return known
    what = "llama.cpp knows no split of text like this tokenizer's, and would give other ids"
    raise UsageError(f"{out}: {what}. Export a Hugging Face folder instead.")


def _pattern(split: Any) -> str:
    """The pattern of a split by one pattern and then into bytes; nothing known has an empty one."""
    parts = split.get("pretokenizers", []) if isinstance(split, dict) else []
    if [part.get("type") for part in parts] != ["Split", "ByteLevel"]:
        return ""
    by_pattern, by_bytes = parts
    plain = by_pattern["behavior"] == "Isolated" and not by_pattern["invert"] and not by_bytes["add_prefix_space"]
    return str(by_pattern["pattern"].get("Regex", "")) if plain and not by_bytes["use_regex"] else ""


def _begins_with_bos(described: Mapping[str, Any]) -> bool:
    """Whether every text begins with one more token."""
    return (described.get("post_processor") or {}).get("type") == "TemplateProcessing"
