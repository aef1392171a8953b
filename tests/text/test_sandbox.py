"""Templates that do something without end are ended: in any thread, and before they take the memory."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from trivium.errors import SourceError
from trivium.text.chat_template import ChatTemplate
from trivium.text.conversation import MalformedConversation

MESSAGES = [{"role": "user", "content": "the fox?"}, {"role": "assistant", "content": "the dog"}]
START = "{% set n = namespace(x='a') %}{% for i in range(99) %}"
LONG = "{% for i in range(99999) %}"
ENDLESS = {
    "loops": f"{LONG * 4}{{% endfor %}}{{% endfor %}}{{% endfor %}}{{% endfor %}}",
    "loops over words": "{% for a in 'abc' * 9999 %}{% for b in 'abc' * 9999 %}{% endfor %}{% endfor %}",
    "text": "{{ 'a' * 10 ** 10 }}",
    "list": "{{ ([1] * 10 ** 10) | length }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "squares": "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "adding": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "blocks": START + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "nested lists": START + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x == [n.x] }}",
    "macros": "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(90) }}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "indent": "{{ 'a' | indent(10 ** 9, true) }}",
    "tojson": "{{ [1] | tojson(indent=10 ** 9) }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "star": "{{ '%*d' | format(10 ** 9, 1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "join": "{{ (['a' * 9999] * 99999) | join }}",
    "joined by": "{{ ('a' * 9999).join('b' * 99999) }}",
    "replace": "{{ ('a' * 999999) | replace('a', 'b' * 999999) }}",
    "method": "{{ ('a' * 999999).replace('a', 'b' * 999999) }}",
    "output": f"{LONG}{'x' * 9999}{{% endfor %}}",
    "long source": "x" * 200_000,
    "parentheses": "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "blocks in blocks": "{% for i in [] %}" * 60 + "{% endfor %}" * 60,
    "sum": "{{ ([[1] * 99] * 9999) | sum(start=[]) | length }}",
    "lipsum": "{{ lipsum(n=10 ** 9) }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) | list }}",
}


def refusal(source: str) -> str:
    with pytest.raises((SourceError, MalformedConversation)) as caught:
        ChatTemplate(source, {}).write(MESSAGES)
    return str(caught.value)


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_would_not_end_is_one_line(kind: str) -> None:
    told = refusal(ENDLESS[kind])
    assert told.startswith("the chat template ")
    assert "\n" not in told
    assert len(told) < 400


def test_limits_hold_in_threads() -> None:
    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(refusal, [ENDLESS["text"], ENDLESS["doubling"]] * 4))
    assert set(told) == {"the chat template makes far more text than it is given. Use another."}


@pytest.mark.parametrize(
    "source",
    ["{{ 1 / 0 }}", "{{ messages[9].content }}", "{{ [] | first + 1 }}", "{% include 'x' %}", "{{ 'a' | int + 'b' }}"],
)
def test_an_error_in_a_template_is_one_line(source: str) -> None:
    assert refusal(source).startswith("the chat template refuses it: ")


def test_what_templates_do_is_as_before() -> None:
    source = (
        "{%- set ns = namespace(n=0, found=[]) -%}{%- for m in messages[::-1] -%}{%- set ns.n = ns.n + 1 -%}"
        "{%- set ns.found = ns.found + [m.role ~ '-' ~ loop.index] -%}{%- endfor -%}{{ ns.found | join(', ') }}"
        "{%- macro twice(x) -%}{{ x * 2 }}{%- endmacro -%}|{{ twice('ab') }}|{{ {'a': [1, 'é']} | tojson }}"
        "|{{ 'a b'.split(' ')[1].strip().upper() }}|{{ '%s-%d' % ('x', 3) }}|{{ '{}'.format(4) }}"
        "|{{ messages | map(attribute='role') | list }}|{{ 'a\\nb' | indent(2) }}|{{ (1, 2) | sum }}|{{ 2 ** 10 % 7 }}"
        "|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|{{ none | default('d', true) }}"
        "|{% for k, v in {'z': 1}.items() %}{{ k ~ v }}{% endfor %}|{{ 'x' in 'xyz' and 'a' not in [] }}"
        "|{% call(x) wrap() %}{{ x }}{% endcall %}{% macro wrap() %}[{{ caller('in') }}]{% endmacro %}"
    )
    source = source.replace("{% call(x) wrap() %}{{ x }}{% endcall %}", "") + "{% call(x) wrap() %}{{ x }}{% endcall %}"
    assert ChatTemplate(source, {}).write(MESSAGES) == (
        "assistant-1, user-2|abab|{\"a\": [1, \"é\"]}|B|x-3|4|['user', 'assistant']|a\n  b|3|2|1|d|z1|True|[in]"
    )
