"""A folder's own way of writing conversations: its Jinja template, in a sandbox with limits, without a clock.

The assistant's words are those in `{% generation %}` blocks. In a template without such blocks they are found by
rendering the conversation up to each assistant's message, and with it: both must be prefixes of the whole text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trivium.errors import SourceError
from trivium.text.conversation import MalformedConversation, raw_messages
from trivium.text.tokenizer import replace_surrogates

if TYPE_CHECKING:
    from trivium.text.file_tokenizer import FileTokenizer

# Noncharacters: Unicode reserves them for a program's own use, so that no text has them.
BREAK, BEGIN, END = "\ufdd0", "\ufdd1", "\ufdd2"
LONGEST_REASON = 200  # characters
KEYS = ("role", "content", "tool_calls", "tool_call_id", "name")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template's source, and the names of special tokens that it may use, such as bos_token."""

    source: str
    names: Mapping[str, str]
    from_config: bool = False  # then it is used even where the tokenizer has markers

    @property
    def has_generation(self) -> bool:
        """Whether the template marks the assistant's words itself."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.source) is not None

    def write(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str:
        """The conversation as the template writes it, the assistant's words between marks."""
        from jinja2.exceptions import SecurityError

        from trivium.text.sandbox import TemplateLimitError, render

        given = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": None, "documents": None}
        try:
            return render(_compiled(self.source), {**given, **self.names})
        except SourceError:
            raise
        except SecurityError as error:
            what = f"does what the sandbox forbids: {_one_line(error)}"
        except TemplateLimitError as error:
            what = str(error)
        except (RecursionError, MemoryError):
            what = "calls itself without end"
        except Exception as error:  # a template may fail as any Python may: divide by 0, look up a missing key
            raise MalformedConversation(f"the chat template refuses it: {_one_line(error)}") from None
        raise SourceError(f"the chat template {what}. Use another.")


def render_by_template(
    conversation: object, template: ChatTemplate, tokenizer: "FileTokenizer"
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """The tokens that a template writes for a conversation, and which of them count in the loss."""
    messages = [_escaped(message, tokenizer) for message in _plain_messages(conversation)]
    text = template.write(messages)
    spans = list(_marked_spans(text) if template.has_generation else _prefix_spans(messages, template, text, tokenizer))
    tokens, starts = tokenizer.encode_template(_unmarked(text))
    loss_mask = np.zeros(len(tokens), np.uint8)
    for begin, end in spans:
        loss_mask[(starts >= begin) & (starts < end)] = 1
    return tokens, loss_mask


def prompt_by_template(conversation: object, template: ChatTemplate, tokenizer: "FileTokenizer") -> NDArray[np.uint32]:
    """The tokens that a template writes up to where the assistant begins to answer."""
    messages = [_escaped(message, tokenizer) for message in _plain_messages(conversation)]
    return tokenizer.encode_template(_unmarked(template.write(messages, add_generation_prompt=True)))[0]


def _plain_messages(conversation: object) -> Iterator[dict[str, Any]]:
    """Messages with the keys that templates know, and content as one text."""
    for message in raw_messages(conversation):
        known = {key: message[key] for key in KEYS if message.get(key) is not None}
        if isinstance(known.get("content"), list):
            if any(part.get("type") != "text" for part in known["content"]):
                raise MalformedConversation("has calls or results as parts, which no chat template writes")
            known["content"] = "".join(part["text"] for part in known["content"])
        yield {"content": "", **known}


def _escaped(value: Any, tokenizer: "FileTokenizer") -> Any:
    """Plain values in which a mark breaks each special token's name, so that the name stays text."""
    if isinstance(value, str):
        return tokenizer.break_names(re.sub(f"[{BREAK}{BEGIN}{END}]", "", replace_surrogates(value)), BREAK)
    if isinstance(value, Mapping):
        return {str(key): _escaped(item, tokenizer) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item, tokenizer) for item in value]
    return value if isinstance(value, int | float | bool | None) else str(value)


def _unmarked(text: str) -> list[str]:
    """The text without marks, cut where a special token's name is broken."""
    return text.replace(BEGIN, "").replace(END, "").split(BREAK)


def _length(text: str) -> int:
    return sum(len(piece) for piece in _unmarked(text))


def _marked_spans(text: str) -> Iterator[tuple[int, int]]:
    """The spans of the assistant's words, in characters of the text without marks."""
    for found in re.finditer(f"{BEGIN}([^{END}]*){END}", text):
        yield _length(text[: found.start()]), _length(text[: found.end()])


def _prefix_spans(
    messages: Sequence[Mapping[str, Any]], template: ChatTemplate, text: str, tokenizer: "FileTokenizer"
) -> Iterator[tuple[int, int]]:
    """The same, found by what each assistant's message adds to the text."""
    names = re.compile("|".join(re.escape(name) for name in tokenizer.special_names.values()) or r"(?!)")
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = template.write(messages[:place], add_generation_prompt=True)
        after = template.write(messages[: place + 1])
        if not (text.startswith(after) and after.startswith(before)):
            raise SourceError(
                "the chat template changes how it writes a message when others follow, so that the assistant's words "
                "cannot be found. Put {% generation %} and {% endgeneration %} around them in the template."
            )
        # What follows the message's last special token, such as a line end, is not the assistant's.
        closing = max((found.end() for found in names.finditer(after, len(before))), default=len(after))
        yield _length(before), _length(after[:closing])


@cache
def _compiled(source: str) -> Any:
    """The template, compiled for a sandbox that has no clock."""
    import jinja2
    from jinja2.ext import Extension

    from trivium.text.sandbox import LONGEST_SOURCE, LimitedEnvironment

    class Generation(Extension):
        """`{% generation %}`: puts marks around the assistant's words."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{BEGIN}{caller()}{END}"

    class Namespace(jinja2.utils.Namespace):
        """A namespace whose names may not begin with an underscore, as Python's internals do."""

        def __init__(self, **values: Any) -> None:
            super().__init__({})
            for name, value in values.items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f'it sets "{name}"')
            super().__setitem__(name, value)

    if len(source) > LONGEST_SOURCE:
        what = f"has {len(source):,} characters, over the limit of {LONGEST_SOURCE:,}"
        raise SourceError(f"the chat template {what}. Use another.")
    environment = LimitedEnvironment([Generation], {"tojson": _to_json})
    # No strftime_now: a conversation has the same tokens tomorrow, and templates have a date for that case.
    environment.globals.update(raise_exception=_refuse, dict=_make_dict, namespace=Namespace)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        what = f"line {error.lineno}: {_one_line(error.message or 'a mistake')}"
    except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
        what = f"it cannot be compiled: {_one_line(error)}"
    raise SourceError(f"the chat template is not Jinja: {what}. Fix it.")


def _one_line(error: Exception | str) -> str:
    """What is wrong, in a line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:LONGEST_REASON].rstrip(".")


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **others: Any) -> str:
    known = {key: others[key] for key in ("separators", "sort_keys") if key in others}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **known)


def _make_dict(*given: Any, **values: Any) -> dict[str, Any]:
    return dict(*given, **values)


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)
