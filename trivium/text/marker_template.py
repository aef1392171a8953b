"""A tokenizer's markers -> the Jinja template that writes conversations with them, for tools that know templates only.

What it writes is what `render` writes: bos, then for each message its start marker, its words, its end marker; a tool's
result is a part of the assistant's message. One limit of templates: a marker's name in a text becomes the marker.
"""

import json
from collections.abc import Mapping

from trivium.text.roles import ROLES, Role

_TEMPLATE = """\
{%- macro words(content) -%}
{%- if content is string -%}{{- content -}}
{%- else -%}{%- for part in content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{{- BOS -}}
{%- for message in messages -%}
{%- set before = loop.previtem.role if loop.previtem is defined else "" -%}
{%- set after = loop.nextitem.role if loop.nextitem is defined else "" -%}
{%- if message.role == "system" -%}
SYSTEM
{%- elif message.role == "user" -%}
{{- USER_START -}}
MERGED
{{- words(message.content) -}}
{{- USER_END -}}
{%- elif message.role == "tool" -%}
{{- RESULT_START + words(message.content) + RESULT_END -}}
{%- if after not in ("tool", "assistant") -%}{{- ASSISTANT_END -}}{%- endif -%}
{%- else -%}
{%- if before != "tool" -%}{{- ASSISTANT_START -}}{%- endif -%}
{%- if message.content is string -%}
{%- generation -%}{{- message.content -}}{%- endgeneration -%}
{%- else -%}
{%- for part in message.content or [] -%}
{%- if part.type in ("call", "python") -%}
{%- generation -%}{{- CALL_START + part.text + CALL_END -}}{%- endgeneration -%}
{%- elif part.type in ("result", "python_output") -%}
{{- RESULT_START + part.text + RESULT_END -}}
{%- else -%}
{%- generation -%}{{- part.text -}}{%- endgeneration -%}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{%- set arguments = function.arguments if function.arguments is string else function.arguments | tojson -%}
{%- generation -%}
{{- CALL_START + '{"name": ' + function.name | tojson + ', "arguments": ' + arguments + "}" + CALL_END -}}
{%- endgeneration -%}
{%- endfor -%}
{%- if after != "tool" -%}{%- generation -%}{{- ASSISTANT_END -}}{%- endgeneration -%}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- ASSISTANT_START -}}{%- endif -%}
"""
_WITH_MARKERS = "{{- SYSTEM_START + words(message.content) + SYSTEM_END -}}"
_BEFORE_USER = '{%- if before == "system" -%}{{- words(loop.previtem.content) + "\\n\\n" -}}{%- endif -%}'


def marker_template(names: Mapping[Role, str]) -> str:
    """The template for tokens of these names; the template raises where it needs a role that has no token."""
    has_system = "system_start" in names and "system_end" in names
    text = _TEMPLATE.replace("SYSTEM\n", f"{_WITH_MARKERS}\n" if has_system else "")
    text = text.replace("MERGED\n", "" if has_system else f"{_BEFORE_USER}\n")
    for role in sorted(ROLES, key=len, reverse=True):
        missing = "''" if role == "bos" else f"raise_exception('the tokenizer has no token for {role}')"
        text = text.replace(role.upper(), json.dumps(names[role]) if role in names else missing)
    return text
