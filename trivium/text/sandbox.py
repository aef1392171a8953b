"""Jinja templates that anyone may have written: compiled for a sandbox that has no clock, no chance, and limits.

Everything that a template makes (texts, lists, numbers, its output) is weighed in characters before it is made, or as
it is, and every round of a loop and every call of a macro is counted. Limits hold in any thread and any process, since
they need no signal: weight is the same everywhere, and time is the thread's own, which a busy machine does not spend.
"""

import functools
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

LONGEST_SOURCE = 1 << 17  # characters; the longest that models have are about 30,000
LEAST_WEIGHT, MOST_WEIGHT = 1 << 24, 1 << 30  # of what one rendering may make, in characters
WEIGHT_EACH = 1000  # of what it may make, for each character that it is given
OBJECT_WEIGHT = 64  # of a value in a list, or a round of a loop
MOST_SECONDS = 5.0  # of a thread's own time
MOST_BITS = 4096  # of a whole number
WIDEST = 1000  # of padding and indentation
WIDE_FILTERS = ("batch", "center", "indent", "slice", "tojson")
WIDE_METHODS = ("center", "ljust", "rjust", "zfill", "expandtabs")
SPLITS = ("split", "rsplit", "splitlines", "partition", "rpartition")
UNKNOWN_FILTERS = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
WIDE_FORMAT = re.compile(r"\d{4}|\{[^{}]*\{|%[^a-zA-Z%]*\*")


class TemplateLimitError(Exception):
    """A template goes beyond a limit; the text says what it does: `takes over 5 seconds`."""


class Budget:
    """What one rendering may still make, and for how long."""

    def __init__(self, given: Any) -> None:
        self.left = min(MOST_WEIGHT, LEAST_WEIGHT + WEIGHT_EACH * weigh(given, MOST_WEIGHT))
        self.ends = time.thread_time() + MOST_SECONDS

    def spend(self, weight: int) -> None:
        self.left -= weight
        if self.left < 0:
            raise TemplateLimitError("makes far more text than it is given")
        if time.thread_time() > self.ends:
            raise TemplateLimitError(f"takes over {MOST_SECONDS:g} seconds")


_BUDGET: ContextVar[Budget] = ContextVar("budget")


def spend(weight: int) -> None:
    _BUDGET.get().spend(weight)


def weigh(value: Any, most: int | None = None) -> int:
    """The characters of all texts in a value, and 64 for each other; stops where there are more than `most`."""
    most = _BUDGET.get().left if most is None else most
    total, waiting = 0, [value]
    while waiting and total <= most:
        each = waiting.pop()
        total += len(each) if isinstance(each, str) else OBJECT_WEIGHT
        if isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set):
            waiting += each
    return total


def render(template: jinja2.Template, given: dict[str, Any]) -> str:
    """What a template writes; TemplateLimitError where it would not end."""
    token = _BUDGET.set(Budget(list(given.values())))
    try:
        return template.render(given)
    finally:
        _BUDGET.reset(token)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which everything that is made is weighed."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, extensions: list[Any], filters: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[*extensions, loopcontrols],
            finalize=_weigh_output,
            optimized=False,  # what is constant would be computed while it is compiled, without limits
        )
        del self.globals["lipsum"]
        known = {name: act for name, act in self.filters.items() if name not in UNKNOWN_FILTERS} | dict(filters)
        self.filters = {name: _limited(name, act) for name, act in known.items()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = LimitNodes().visit(super()._parse(source, name, filename))
        return tree

    def spend_round(self, weight: int) -> None:
        """Count a round of a loop or a call of a macro, with the constant text in it."""
        spend(weight)

    def made(self, value: Any) -> Any:
        """A list, tuple or dict that the template has written."""
        spend(weigh(value))
        return value

    def concat_texts(self, *parts: Any) -> str:
        """`a ~ b`."""
        spend(weigh(parts))
        return "".join(map(str, parts))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MOST_BITS and abs(left) > 1:
                raise TemplateLimitError("makes numbers without end")
        elif operator == "*":
            times = [each for each in (left, right) if isinstance(each, int)]
            spend(weigh([left, right]) * max([1, *times]))
        elif operator == "%" and isinstance(left, str):
            _spend_format(left, right)
        elif operator == "+":
            spend(weigh([left, right]))
        return super().call_binop(context, operator, left, right)

    # jinja2's own names of these two begin with underscores, so that a template may pass any name on.
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _spend_method(owner, method.__name__, args, kwargs)
            return super().call(__context, __obj, *args, **kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, list | dict | tuple):
            spend(weigh(result))
        return result


class LimitNodes(NodeTransformer):
    """Puts counting into loops and macros, and weighing around what makes texts and lists."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._counted(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._counted(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._counted(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concat_texts", node.nodes, node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._made(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._made(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._made(node) if node.ctx == "load" else node

    def _made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", [node], node.lineno)

    def _counted(self, node: Any) -> nodes.Node:
        texts = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        counted = _call("spend_round", [nodes.Const(OBJECT_WEIGHT + texts)], node.lineno)
        node.body = [nodes.ExprStmt(counted).set_lineno(node.lineno), *node.body]
        return node  # type: ignore[no-any-return]


def _call(name: str, arguments: list[Any], line: int) -> nodes.Node:
    """A call of a method of the environment, which no name of the template can hide."""
    method = nodes.EnvironmentAttribute(name).set_lineno(line)
    return nodes.Call(method, arguments, [], None, None).set_lineno(line)


@jinja2.pass_context
def _weigh_output(_context: Any, value: Any) -> Any:
    spend(len(value) if isinstance(value, str) else weigh(value))
    return value


def _limited(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that weighs what it makes, and before that where the result may be larger than what it takes."""

    @functools.wraps(act)  # keeps the mark by which jinja2 passes a context first
    def limited(*args: Any, **kwargs: Any) -> Any:
        first = 1 if hasattr(act, "jinja_pass_arg") else 0
        value, others = args[first], args[first + 1 :]
        if name in WIDE_FILTERS:
            _refuse_wide(name, [*others, *kwargs.values()])
        if name == "join":
            value = value if isinstance(value, str) else list(value)
            separator = others[0] if others else kwargs.get("d", "")
            spend(weigh(value) + len(value) * weigh(separator))
            args = (*args[:first], value, *others)
        elif name == "replace":
            _spend_method(str(value), "replace", others, kwargs)
        elif name == "format":
            _spend_format(str(value), [others, kwargs])
        elif name == "sum" and any(isinstance(each, list | tuple) for each in (*others, *kwargs.values())):
            raise TemplateLimitError("adds lists up")
        elif name in ("indent", "tojson", "string", "e", "escape", "forceescape"):
            spend(WIDEST // 10 * weigh(value) if name == "indent" else 6 * weigh(value))
        result = act(*args, **kwargs)
        if result is not value:
            spend(len(result) if isinstance(result, str) else weigh(result))
        return result

    return limited


def _refuse_wide(name: str, sizes: list[Any]) -> None:
    for size in sizes:
        if (isinstance(size, int) and abs(size) > WIDEST) or (isinstance(size, str) and len(size) > WIDEST):
            raise TemplateLimitError(f"pads by over {WIDEST:,} in {name}")


def _spend_method(text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """The price of a method of a text, before it is called."""
    given = [*args, *kwargs.values()]
    weight = len(text) + OBJECT_WEIGHT
    if name in WIDE_METHODS:
        _refuse_wide(name, given[:1])
        weight += (text.count("\t") + 1) * WIDEST
    elif name in SPLITS:
        weight *= OBJECT_WEIGHT // 4
    elif name == "replace" and len(given) > 1:
        weight += text.count(str(given[0])) * weigh(given[1])
    elif name == "join":
        weight += weigh(given) * max(1, len(text))
    elif name == "translate":
        weight *= weigh(given)
    elif name in ("format", "format_map"):
        _spend_format(text, given)
    spend(weight)


def _spend_format(pattern: str, given: Any) -> None:
    if WIDE_FORMAT.search(pattern):
        raise TemplateLimitError("pads without end in a format")
    spend(len(pattern) + (pattern.count("{") + pattern.count("%")) * weigh(given))
