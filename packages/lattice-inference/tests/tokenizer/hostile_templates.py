"""Chat templates that would run, or grow, without end: each by another thing that a template can do."""

from __future__ import annotations

__all__ = ["LARGE_SOURCES", "TEMPLATES"]


def doubled(expression: str, first: str, after: str = "") -> str:
    """A template that replaces ``ns.x`` sixty times by what is made of it, then does something with it."""
    loop = "{% for i in range(60) %}{% set ns.x = " + expression + " %}{% endfor %}"
    return "{% set ns = namespace(x=" + first + ") %}" + loop + after


def shared(after: str) -> str:
    """A template with a small list of lists that shows as 2 ** 60 numbers."""
    return doubled("[ns.x, ns.x]", "1", after)


def hashed(after: str) -> str:
    """The same of tuples, which are hashed anew each time."""
    return doubled("(ns.x, ns.x)", "1", after)


def often(before: str, expression: str) -> str:
    """A template that does something with a large value 99,999 times."""
    return before + "{% for i in range(99999) %}{% set q = " + expression + " %}{% endfor %}"


TEXT = "{% set b = 'ab ' * 700000 %}"
MILLION = "{% set b = 'a' * 1000000 %}"
LIST = "{% set l = range(100000) | list %}"
QUOTES = "{% set b = '\"' * 4000000 %}"
TWICE = "{% macro f(n) %}{% if n %}BODY{% endif %}{% endmacro %}{{ f(60) }}"

TEMPLATES: dict[str, str] = {
    # calls and loops
    "a macro that calls itself twice": TWICE.replace("BODY", "{{ f(n - 1) }}{{ f(n - 1) }}"),
    "a macro that calls itself twice and says nothing": TWICE.replace("BODY", "{% set a = [f(n - 1), f(n - 1)] %}"),
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a caller that calls": TWICE.replace(
        "BODY", "{% for i in [1, 2] %}{% call(m) f(n - 1) %}{% endcall %}{% endfor %}"
    ),
    "a block that shows itself": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "a recursive loop": "{% for x in [1] recursive %}{{ loop([1, 2]) }}{{ loop([1, 2]) }}{% endfor %}",
    "a recursive loop over a range": "{% for x in [1] recursive %}{{ loop(range(9999)) if loop.depth < 9 }}{% endfor %}",
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that pass over": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "loops over characters": "{% set s = range(99999) | join %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "arguments from a list": often(LIST + "{% macro f() %}{{ varargs | length }}{% endmacro %}", "f(*l)"),
    "a cycler of a list": often(LIST, "cycler(*l)"),
    "a mapping of pairs": often(LIST, "dict(l | batch(2))"),
    "a charge given back": "{{ none | lattice_charge(-10**9, -10**9) }}{% for a in range(99999) %}{% for b in "
    "range(99999) %}{% endfor %}{% endfor %}",
    "turns given back": "{{ range(9999) | lattice_each(-10**9) | list | length }}{% for a in range(99999) %}{% for b in "
    "range(99999) %}{% endfor %}{% endfor %}",
    # widths
    **{f"a width of {name}": "{{ 'a'." + name + "(2000000000) }}" for name in ("center", "ljust", "rjust", "zfill")},
    "a width by a name": "{% set f = 'a'.center %}{{ f(2000000000) }}",
    "a width of marked text": "{{ ('a' | e).center(2000000000) }}",
    "the filter center": "{{ 'a' | center(2000000000) }}",
    "the filter center by name": "{{ ['a'] | map('center', width=2000000000) | list }}",
    "tabs": "{{ '\\t\\t'.expandtabs(2000000000) }}",
    "tabs by name": "{{ '\\t\\t'.expandtabs(tabsize=2000000000) }}",
    "a width behind %": "{{ '%2000000000d' % 1 }}",
    "a precision behind %": "{{ '%.2000000000f' % 1 }}",
    "a star behind %": "{{ '%*d' % (2000000000, 1) }}",
    "a width of a mapping": "{{ '%(a)2000000000d' % {'a': 1} }}",
    "a test for odd texts": "{{ '%2000000000d' is odd }}",
    "a test for even texts": "{{ '%2000000000d' is even }}",
    "a test for multiples": "{{ '%2000000000d' is divisibleby(3) }}",
    "a test by name": "{{ ['%2000000000d'] | select('odd') | list }}",
    "the filter format": "{{ '%2000000000d' | format(1) }}",
    "many places behind %": MILLION + "{{ ('%(x)s' * 100000) % {'x': b} }}",
    "str.format": "{{ '{:2000000000}'.format(1) }}",
    "str.format with a field": "{{ '{:{}}'.format(1, 2000000000) }}",
    "str.format_map": "{{ '{a:>2000000000}'.format_map({'a': 1}) }}",
    "str.format of many": MILLION + "{{ ('{0}' * 100000).format(b) }}",
    "str.format with repr": MILLION + "{{ ('{0!r}' * 100000).format(b) }}",
    "indent": "{{ 'a\\nb' | indent(10**9) }}",
    "indent of the first line": "{{ 'a' | indent(10**9, true) }}",
    "indent by a text": "{% set b = 'a' * 100000 %}{{ ('a\\n' * 100000) | indent(b) }}",
    "tojson": "{{ [1] | tojson(indent=10**9) }}",
    "tojson of many": "{{ ([1] * 100000) | tojson(indent=100000) }}",
    "tojson with separators": "{% set b = 'a' * 100000 %}{{ ([1] * 100000) | tojson(separators=(b, b)) }}",
    "slice": "{{ [1] | slice(10**9) | first }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "a date": "{{ strftime_now('%c' * 2000000) }}",
    # growth
    "a text times": "{{ 'a' * 10**9 }}",
    "a list times": "{{ 10**9 * [1] }}",
    "a tuple times": "{{ (1,) * 10**9 }}",
    "texts by ~": doubled("ns.x ~ ns.x", "'aaaa'"),
    "texts by +": doubled("ns.x + ns.x", "'aaaa'"),
    "lists by +": doubled("ns.x + ns.x", "[1]"),
    "tuples by +": doubled("ns.x + ns.x", "(1,)"),
    "set blocks": doubled("y", "'a'").replace("{% set ns.x", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x"),
    "filter blocks": doubled("y", "'a'").replace(
        "{% set ns.x", "{% set y %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}{% set ns.x"
    ),
    "integers": doubled("ns.x * ns.x", "3"),
    "a power": "{{ 2 ** 10 ** 10 ** 3 }}",
    "a number of letters": "{{ ('f' * 4000000) | int(0, 16) }}",
    "a long number": "{{ ('1' * 4000000) | float }}",
    "places of a number": "{{ 1 | round(10**9, 'ceil') }}",
    "places before the point": "{{ 1 | round(-10**9) }}",
    "lists that are kept": "" + doubled("[ns.x, range(1000) | list]", "[]").replace("60", "9999"),
    "lists of one": LIST + "{% set q = l | batch(1) | list %}" * 9,
    "sums of lists": LIST + "{{ ([l] * 1000) | sum(start=[]) | length }}",
    "join": TEXT + "{{ range(99999) | join(b) }}",
    "join of an attribute": MILLION + "{{ ([{'t': b}] * 99999) | join('', attribute='t') }}",
    "str.join": TEXT + "{{ b.join(['a'] * 99999) }}",
    "str.join of characters": TEXT + "{{ b.join(b) }}",
    "str.join of a chain": TEXT + "{{ b.join(range(99999) | map('string')) }}",
    "join of marked texts": "{{ ('a' | e).join(['\"' * 400000] * 100) }}",
    "replace": TEXT + "{{ b | replace('a', b) }}",
    "replace of nothing": TEXT + "{{ b | replace('', b) }}",
    "str.replace": TEXT + "{{ b.replace('', b) }}",
    "escape": QUOTES + "{{ b | e }}",
    "forceescape": QUOTES + "{{ b | forceescape }}",
    "attributes": QUOTES + "{{ {'a': b} | xmlattr }}",
    "autoescape": "{% autoescape true %}" + QUOTES + "{{ b }}{% endautoescape %}",
    "autoescape and ~": "{% autoescape true %}" + QUOTES + "{% set c = b ~ b %}{% endautoescape %}",
    "marked texts by +": QUOTES + "{{ ('a' | e) + b }}",
    "urlencode": "{{ ('\\u00e9' * 4000000) | urlencode }}",
    "what is written": "{% for i in range(99999) %}" + "x" * 200_000 + "{% endfor %}",
    # texts of megabytes
    "title": "{{ ('a ' * 4000000) | title }}",
    "wordcount": "{{ ('a ' * 4000000) | wordcount }}",
    "wordwrap": TEXT + "{{ b | wordwrap(1) }}",
    "wordwrap of dashes": "{{ ('-' * 1000000) | wordwrap(79) }}",
    "wordwrap with a text": "{% set w = 'w' * 100000 %}{{ ('ab ' * 2000) | wordwrap(2, wrapstring=w) }}",
    "urlize": "{{ ('www.a.b ' * 500000) | urlize }}",
    "striptags": "{{ ('<!--' * 500000) | striptags }}",
    "pprint": LIST + "{{ l | pprint }}",
    **{
        f"{expression} many times": often(TEXT, expression)
        for expression in ("b.upper()", "b | upper", "b.find('zz')", "b.count('a')", "'zz' in b", "b is lower")
    },
    **{
        f"{expression} often": often(TEXT, expression)
        for expression in ("b.strip()", "b[1:]", "b.split()", "b == b ~ ''")
    },
    **{
        f"{expression} often": often(LIST, expression)
        for expression in ("'zz' in l", "l[::-1]", "l | groupby(0)", "l | sum")
    },
    **{
        f"{expression} often": often(LIST, expression)
        for expression in ("l | sort | last", "l | map('string') | list", "l == l")
    },
    # small values that are large to look at
    "a list of lists": shared("{{ ns.x }}"),
    "a list of lists by name": shared("{{ {'a': ns.x}.values() }}"),
    **{
        f"a list of lists and {expression}": shared("{% set q = " + expression + " %}")
        for expression in (
            *("ns.x | tojson", "ns.x | string", "ns.x | upper", "ns.x | urlencode", "ns.x | pprint", "[ns.x] | join"),
            *("ns.x | replace('1', '2')", "'%s' % (ns.x,)", "'%s' | format(ns.x)", "'{}'.format(ns.x)", "'' ~ ns.x"),
            *("ns.x == [ns.x[0], ns.x[1]]", "[ns.x, ns.x] | sort", "[ns.x, ns.x] | min", "[ns.x].index([ns.x[0]])"),
            *("ns.x is upper", "ns.x is eq(ns.x)", "ns.x in [ns.x[0]]", "raise_exception(ns.x)"),
        )
    },
    **{
        f"a tuple of tuples and {expression}": hashed("{% set q = " + expression + " %}")
        for expression in (
            *("{1: 2}[ns.x]", "{1: 2}.get(ns.x)", "{ns.x: 2}", "ns.x in {1: 2}", "ns.x is in({1: 2})", "[][ns.x].y"),
            *("[ns.x] | unique | list", "dict([(ns.x, 1)])"),
        )
    },
    "a mapping of mappings": doubled("{'a': ns.x, 'b': ns.x}", "1", "{{ ns.x }}"),
    "a namespace of namespaces": doubled("namespace(a=ns.x, b=ns.x)", "1", "{{ ns.x.a }}"),
    "what has changed": "{% for q in [1, 2, 3] %}" + shared("{{ loop.changed(ns.x) }}") + "{% endfor %}",
    "deep tuples": hashed("").replace("(ns.x, ns.x)", "(ns.x,)").replace("60", "99999") + "{{ {1: 2}[ns.x] }}",
    "deep lists": shared("").replace("[ns.x, ns.x]", "[ns.x]").replace("60", "9999") + "{{ ns.x == [ns.x] }}",
    # what no template needs
    "lipsum": "{{ lipsum(n=100000) }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "fromkeys": "{{ {}.fromkeys(range(100000)) }}",
    "encode": TEXT + "{{ b.encode() }}",
    "translate": MILLION + "{{ b.translate({97: b}) }}",
    "unescape": "{{ (('&lt;' * 1000000) | safe).unescape() }}",
    "a path": "{{ [1] | map(attribute='" + "a." * 20_000 + "') | list }}",
    "import": "{% import 'x' as y %}",
    "include": "{% include 'x' %}",
}

LARGE_SOURCES: dict[str, str] = {
    "terms": "{{ 1" + "+1" * 100_000 + " }}",
    "texts": "{{ 'a'" + "~'a'" * 50_000 + " }}",
    "items": "{{ [" + "1," * 100_000 + "] }}",
    "brackets": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "conditions": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "loops": "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
    "many loops": "{% for a in b %}{% endfor %}" * 2000,
    "names and blocks": "".join(f"{{% set a{i} = 1 %}}" for i in range(1000)) + "{% if a1 %}{% endif %}" * 400,
    "filters": "{{ a" + "|upper" * 8000 + " }}",
    "attributes": "{{ a" + ".b" * 8000 + " }}",
    "comparisons": "{{ a" + "<a" * 8000 + " }}",
    "signs": "{{ " + "-" * 30_000 + "1 }}",
    "calls": "{{ a" + "()" * 5000 + " }}",
    "letters of a number": "{{ 0x" + "f" * 200_000 + " }}",
    "digits of a number": "{{ " + "9" * 200_000 + " }}",
    "output": "{{ a }}" * 10_900,
    "a product": "{{ 'a' * " + "9" * 100 + " * [1] }}",
    "characters": "x" * (2**18 + 1),
}
