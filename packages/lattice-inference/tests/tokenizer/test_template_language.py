"""What templates say means the same as in Jinja's own sandbox, with budgets and with marks."""

# ruff: noqa: E501 -- a template is one line

from __future__ import annotations

import json

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lattice_inference.tokenizer.chat_template import ChatTemplate

MESSAGES = [
    {"role": "user", "content": " Hello, World! x<y & 'z' 7 "},
    {
        "role": "assistant",
        "content": "ß und é, <b>bold</b>\nline two\r\nthree",
        "tool_calls": [{"name": "f", "arguments": {"b": 2, "a": [1, None, True, 1.5]}}],
    },
    {"role": "user", "content": "a,b,,c"},
]
EXPRESSIONS = """
messages | map(attribute='role') | join(', ')
messages | map(attribute='content') | map('trim') | map('upper') | join('|')
messages | selectattr('role', 'equalto', 'user') | list | length
messages | rejectattr('role', 'eq', 'user') | map(attribute='content') | first
messages | selectattr('tool_calls', 'defined') | map(attribute='content') | list | last
messages[1].tool_calls | tojson
messages[1].tool_calls | tojson(indent=4)
messages[1].tool_calls | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':'))
messages[1].tool_calls[0].arguments | dictsort
messages[1].tool_calls[0].arguments | items | list
messages[1].tool_calls[0].arguments.items() | list
messages[1].tool_calls[0].arguments.keys() | join
messages[1].tool_calls[0].arguments.get('b', 5) + 1
messages[1].tool_calls[0].arguments.get('c', 'none')
messages[0].content.strip().split(' ')
messages[2].content.split(',', 1)
messages[2].content.rsplit(',', 1)[0]
messages[2].content.partition(',')
messages[1].content.splitlines()
messages[0].content.startswith(' ') and messages[0].content.endswith(' ')
messages[0].content.find('W') ~ messages[0].content.count('l') ~ messages[0].content.index('W')
messages[0].content.replace('l', 'L', 2)
messages[0].content | replace(' ', '')
messages[0].content | upper ~ messages[0].content | lower ~ messages[0].content | title ~ messages[0].content | capitalize
messages[0].content.title() ~ messages[0].content.swapcase() ~ messages[0].content.capitalize()
messages[0].content | e
messages[0].content | length
messages[0].content | trim | truncate(9) ~ '.'
messages[1].content | indent(3) ~ messages[1].content | indent(3, true) ~ messages[1].content | indent('>>', blank=true)
messages[1].content | wordcount ~ messages[1].content | striptags ~ messages[0].content | urlencode
messages[0].content | wordwrap(5) ~ messages[0].content | center(50) ~ messages[0].content.zfill(40)
messages[0].content | list | unique | sort | join
messages[0].content[1:6] ~ messages[0].content[::-1] ~ messages[0].content[-3:] ~ messages[0].content[0] ~ messages[0].content[::2]
messages[1:] | length ~ messages[-1].content ~ messages[::-1][0].content
messages | reverse | map(attribute='role') | list
'%s and %5d and %.2f' % (messages[0].role, 7, 1.5)
'%(a)s' % {'a': messages[0].content}
'%s-%s' | format(messages[0].role, messages[0].content)
'{} {:>8} {x!r} {0.real}'.format(1, messages[0].role, x=messages[2].content)
'{a}'.format_map({'a': messages[2].content})
'a' + messages[0].content + 'b' ~ 1 ~ none ~ true ~ [messages[0].role] ~ {'k': messages[0].role}
1 + 2 * 3 - 4 // 3 + 7 % 4 + 2 ** 3 - -1 + 5 / 2
'ab' * 3 ~ [1] * 2 ~ ((1, 2) + (3,))
([1, 2] + [messages[0].role]) ~ [[1, 2], [3]] | sum(start=[]) ~ [1, 2] | sum
range(10) | batch(3, 'x') | list ~ range(10) | slice(3) | map('list') | list
[3, 1, 2] | sort(reverse=true) ~ [3, 1, 2] | min ~ ['b', 'A'] | sort ~ [3, 1, 2] | max
messages | groupby('role') | map('first') | list
messages | sum(attribute='content.x') if false else 'skipped'
7.555 | round(2) ~ 7 | float ~ '12' | int ~ 'x' | int(5) ~ 'ff' | int(0, 16) ~ -3 | abs ~ 1e6 | filesizeformat
messages[0].nothing | default('d') ~ messages[0].nothing ~ '' | default('e', true) ~ undefined_name | default(3)
messages[0].role in ['user', 'system'] and 'Hello' in messages[0].content and 'content' in messages[0] and 9 not in [1]
1 < 2 <= 2 != 3 and messages[0].role == messages[2].role and messages[0] != messages[1]
messages is iterable and messages[0] is mapping and messages[0].content is string and 3 is odd and 4 is divisibleby(2)
messages[0].content is lower ~ 'A' is upper ~ none is none ~ 1 is number ~ 1.5 is float ~ true is boolean ~ 'a' is in('abc')
dict(a=1, b=messages[0].role) ~ namespace(a=1).a ~ joiner(',')() ~ cycler('x', 'y').next()
messages[0].content.isdigit() ~ '12'.isdigit() ~ 'ab'.ljust(4) ~ 'ab'.rjust(4) ~ ','.join(['a', messages[0].role])
messages[1].content | e | length ~ (messages[0].role | safe) ~ messages[0] | xmlattr
{'b': 1, 'a': 2} | tojson ~ [messages[0].role, 1.0, none] | tojson ~ messages[0].content | tojson
([1, 2, 3] | random in [1, 2, 3]) ~ [1, [2, 3]] | string ~ messages[2] | string ~ messages[1] | pprint
{(1, 2): 3}[(1, 2)] ~ (1, 2).index(2) ~ [1, 1].count(1) ~ (5).bit_length() ~ messages[0]['content']['upper']()
messages[2].content | attr('nothing') is undefined and messages | attr('count') is defined
""".strip().split("\n")
BLOCKS = [
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {{ loop.first }}{{ loop.last }}{{ loop.revindex }}"
    "{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem.role if loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}"
    "{{ loop.changed(m.role) }};{% else %}none{% endfor %}",
    "{% for k, v in messages[1].tool_calls[0].arguments.items() recursive %}{{ k }}{% if v is iterable %}{% endif %}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.depth }}{% endfor %}",
    "{% macro f(a, b='x') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro %}"
    "{{ f(1) }}{{ f(messages[0].role, 2, 3, c=4) }}{% call f(1, b=2) %}in{% endcall %}{{ f.name }}",
    "{% macro deep(n) %}{% if n %}({{ deep(n - 1) }}){% endif %}{% endmacro %}{{ deep(9) }}",
    "{% set ns = namespace(n=0, t='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.t = ns.t ~ m.content[:3] %}{% endfor %}"
    "{{ ns.n }}{{ ns.t }}",
    "{% set x %}a{{ messages[0].content }}b{% endset %}{{ x | trim }}{% set y | upper %}q{{ messages[0].role }}{% endset %}{{ y }}",
    "{% filter replace('l', 'L') %}{{ messages[0].content }} l{% endfilter %}{% with a = 1, b = messages[0].role %}{{ a }}{{ b }}{% endwith %}",
    "{% block one %}[{{ messages[0].role }}{% block two scoped %}!{% endblock %}]{% endblock %}{{ self.one() }}",
    "{% for a in range(3) %}{% for b in range(3) %}{% if b == 1 %}{% continue %}{% endif %}{% if a == 2 %}{% break %}{% endif %}"
    "{{ a }}{{ b }} {% endfor %}{% endfor %}",
    "{% if not messages %}a{% elif messages | length > 9 %}b{% else %}c{% endif %}{{ 'x' if false }}{{ 'y' if true else 'z' }}",
    "{% raw %}{{ no }}{% endraw %}{# comment #}{%- set a, b = 1, 2 -%}  {{ a ~ b }}  {{- ' end' }}",
    "{% set parts = messages[2].content.split(',') %}{{ parts[0] }}{{ parts[-1].lstrip('c') }}|{{ parts | join('') }}",
]


def by_jinja(source):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    return environment.from_string(source).render(messages=MESSAGES)


@pytest.mark.parametrize("source", [*("{{ " + expression + " }}" for expression in EXPRESSIONS), *BLOCKS])
def test_a_template_says_what_it_says_in_jinja(source):
    expected = by_jinja(source)
    template = ChatTemplate(source)
    assert template.render(MESSAGES) == expected
    assert template.render_marked(MESSAGES)[0] == expected
