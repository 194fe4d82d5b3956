"""Check the language of the tree: long sentences, long first lines of docstrings, words to avoid.

``python tools/checks/words.py`` reads the pages (Markdown) and the code's docstrings, comments and messages. It counts the
pages' words too. ``not_clean.txt`` lists the files that are still to be mended. ``--shrink`` removes the clean ones from it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_CLEAN = Path(__file__).with_name("not_clean.txt")
MOST_SENTENCE_WORDS = 40
MOST_FIRST_LINE = 90
MOST_PAGE_WORDS = 39_200
COUNT = "(words of all pages)"  # stands in the list as long as the pages have more than MOST_PAGE_WORDS
PAGES = ("*.md", "docs/**/*.md", "packages/*/*.md", "packages/*/src/**/*.md", "benchmarks/*.md", "examples/**/*.md")
CODE = ("packages/*/src/", "benchmarks/", "tools/", "ci/", "examples/", "noxfile.py", "conftest.py")
NOT_CHECKED = re.compile(r"/tests?/|tools/checks/(test_)?words\.py$|benchmarks/(data|results)/")

_ORDINARY_BEHIND = (
    r"(?!\s+(?:an?|the|your|its|one|some)?\s*(?:[\w-]+\s+){0,2}?"
    r"(?:prox(?:y|ies)|balancers?|firewalls?|gateways?|routers?|scenes|NAT|TLS|flag)\b)"
)
AVOIDED = {
    "door": r"doors?",
    "kin": r"kin",
    "house": r"houses?",
    "twin": r"twins?",
    "of its own": r"of (?:its|their|our|one's) own",
    "nobody": r"nobody",
    "no bit is another": r"no bit (?:is|of it is) (?:an)?other\w*",
    "behind (for after)": r"(?<!left )(?<!lag )(?<!lags )(?<!fall )(?<!falls )behind" + _ORDINARY_BEHIND,
    "is asked for": r"(?:is|are|was|were|be|been|being) asked for",
    "whoever": r"whoever|whosoever",
    "where there is none": r"where there (?:is|are) none",
    "reckon": r"reckon(?:s|ed|ing)?",
}
_AVOIDED = {name: re.compile(rf"(?<![\w-]){pattern}(?![\w-])", re.IGNORECASE) for name, pattern in AVOIDED.items()}
_PLANNED = re.compile(r"(?<![\w-])planned(?![\w-])", re.IGNORECASE)
_FIRST = re.compile(r"[\w`\"'(\[*]")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|etc|resp|approx|Fig|eq|al|No|p|pp)|\b[A-Z])\.$")


@dataclass(frozen=True)
class Text:
    """A paragraph of a page, table, first line, docstring, comment or message; ``line`` counts from 1."""

    kind: str
    line: int
    prose: str


def words(prose: str) -> int:
    """Return how many words ``prose`` has; a piece of code in backticks is one."""
    flat = re.sub(r"(`+)(?:(?!\1).)+\1", "code", prose, flags=re.DOTALL)
    return sum(1 for piece in flat.split() if re.search(r"\w", piece))


def sentences(prose: str) -> Iterator[str]:
    """Yield the sentences of one paragraph."""
    start = 0
    for match in re.finditer(r"[.!?][\"')\]*_`]*\s+", prose):
        before = prose[start : match.end()]
        following = prose[match.end() : match.end() + 1]
        if _ABBREVIATION.search(before.rstrip()) or not following or not _FIRST.match(following):
            continue
        yield before.strip()
        start = match.end()
    if prose[start:].strip():
        yield prose[start:].strip()


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield the paragraphs, list items, headings and table rows of a page; code blocks are left out."""
    fence = ""
    block: list[str] = []
    first = 1
    # A comment of HTML keeps its lines, so that the numbers stay right.
    source = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL)
    for number, line in enumerate([*source.splitlines(), ""], 1):
        bare = re.sub(r"^(?:> ?)+", "", line.strip())
        marks = re.match(r"(`{3,}|~{3,})", bare)
        if fence:
            if marks and bare.startswith(fence) and not bare.strip("`~"):
                fence = ""
            continue
        item = re.match(r"(?:[-*+]|\d+[.)])\s+", bare)
        if block and (not bare or marks or item or bare[0] in "|#"):
            yield Text("page", first, " ".join(block))
            block = []
        if marks:
            fence = marks[1]
        elif bare.startswith("|"):
            yield Text("table", number, bare)
        elif bare.startswith("#"):
            yield Text("page", number, bare.lstrip("# "))
        elif bare and not re.fullmatch(r"<[^>]+>|[-=*_ ]+|\[[^\]]+\]:\s+\S+.*", bare):
            if not block:
                first = number
            block.append(_without_links(bare[item.end() :] if item else bare))


def _without_links(text: str) -> str:
    return re.sub(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\]]*\])", r"\1", text)


_STRING = (
    r"(?P<prefix>(?<!\w)[rbuftRBUFT]{1,2}(?=[\"'])|)"
    r"(?P<quote>\"{3}|'{3}|\"|')(?P<body>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)"
)
_PROGRAM = re.compile(r"^\s*(?:import|from|CREATE|SELECT|INSERT|UPDATE|def) ", re.MULTILINE)
_PIECE = re.compile(rf"#(?P<comment>[^\n]*)|{_STRING}", re.DOTALL)


@dataclass(frozen=True)
class _Piece:
    """A comment or string of a Python file: ``text`` without its marks, at ``start`` to ``end`` of the source."""

    kind: str
    line: int
    start: int
    end: int
    text: str


def python_texts(source: str) -> Iterator[Text]:
    """Yield docstrings, comments and strings of more than two words of a Python or Cython file."""
    group: list[_Piece] = []
    for piece in [*_pieces(source), None]:
        if group and not (piece and _continues(source, group[-1], piece)):
            first = group[0]
            text = ("\n" if first.kind == "comment" else "").join(each.text for each in group)
            if first.kind != "message" or (len(text.split()) > 2 and not _PROGRAM.search(text)):
                column = first.start - source.rfind("\n", 0, first.start) - 1
                yield from _paragraphs(first.kind, first.line, text, column if first.kind == "docstring" else 0)
            group = []
        if piece:
            group.append(piece)


def _pieces(source: str) -> Iterator[_Piece]:
    line, counted = 1, 0
    for match in _PIECE.finditer(source):
        start, end = match.span()
        line, counted = line + source.count("\n", counted, start), start
        before = _code_before(source, start)
        if match["comment"] is not None:
            if not re.match(r"\s*(?:noqa|type:|fmt:|pragma|cython:|distutils:|!)", match["comment"]):
                kind = "trailing comment" if before is None else "comment"
                yield _Piece(kind, line, start, end, match["comment"].removeprefix(" "))
        elif len(match["quote"]) == 3 and before is not None and (not before or before.endswith(":")):
            yield _Piece("docstring", line, start, end, match["body"])
        elif "b" not in match["prefix"].lower():
            replaced = r"\{(?:[^{}]|\{[^{}]*\})*\}" if "f" in match["prefix"].lower() else "(?!)"
            yield _Piece("message", line, start, end, re.sub(replaced, "x", match["body"]).replace("\\n", "\n"))


def _continues(source: str, former: _Piece, piece: _Piece) -> bool:
    """Return whether ``piece`` is the next line of a comment, or the next part of a string."""
    between = source[former.end : piece.start]
    if piece.kind != former.kind or between.strip(" \n\\"):
        return False
    return piece.kind == "message" or (piece.kind == "comment" and between.count("\n") == 1)


def _code_before(source: str, start: int) -> str | None:
    """Return the last line of code before a string that begins a line; None for a string within a line."""
    line_start = source.rfind("\n", 0, start) + 1
    if source[line_start:start].strip():
        return None
    while line_start:
        end, line_start = line_start - 1, source.rfind("\n", 0, line_start - 1) + 1
        code = re.sub(r"\s#.*$", "", source[line_start:end]).strip()
        if code and not code.startswith("#"):
            return code
    return ""


def _paragraphs(kind: str, line: int, text: str, margin: int = 0) -> Iterator[Text]:
    """Yield the paragraphs and list items of a text, without examples, columns and indented blocks."""
    if kind == "docstring":
        yield Text("first line", line, text.strip("\\\n").split("\n", 1)[0].strip())
    rows = text.split("\n")
    block: list[str] = []
    first, code, deep = line, False, False
    for number, row in enumerate([*rows, ""], line):
        bare = row.strip()
        indent = len(row) - len(row.lstrip()) - (margin if number > line else 0)
        item = re.match(r"(?:[-*+]|\d+[.)])\s+", bare) or (indent > 0 and re.match(r"\*{0,2}[\w, ]+:\s+", bare))
        columns = re.search(r"\S {3,}\S", bare) or set(bare) <= set("=-+|~^ ")
        columns = columns or (kind == "message" and (indent > 1 or " " not in bare))
        if code:
            code = (not bare or indent > 0) if deep else bool(bare)
        if not code and bare.startswith(">>>"):
            code, deep = True, False
        if block and (not bare or code or item or columns):
            yield Text(kind, first, " ".join(block))
            if block[-1].endswith("::"):
                code, deep = True, True
            block = []
        if bare and not code and not columns:
            if not block:
                first = number
            block.append(bare[item.end() :] if item else bare)


def problems(texts: Iterator[Text], exists: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Yield line and message of what is wrong in one file's texts.

    ``exists`` holds the tree's file and folder names; "planned" beside one of them in backticks is out of date.
    """
    for text in texts:
        if text.kind == "first line":
            if len(text.prose) > MOST_FIRST_LINE:
                yield text.line, f"docstring's first line has {len(text.prose)} characters"
            continue
        bare = re.sub(r"(`+)(?:(?!\1).)+\1", "`", text.prose)
        for name, pattern in _AVOIDED.items():
            found = pattern.search(bare)
            if found:
                yield text.line, f"{name}: ...{bare[max(found.start() - 30, 0) : found.end() + 30]}..."
        for sentence in [text.prose] if text.kind == "table" else sentences(text.prose):
            if text.kind != "table" and words(sentence) > MOST_SENTENCE_WORDS:
                yield text.line, f"sentence of {words(sentence)} words: {sentence[:60]}..."
            if _PLANNED.search(sentence):
                built = exists & {name.strip("/") for name in re.findall(r"`([^`]+)`", sentence)}
                if built:
                    yield text.line, f"planned, but exists: {', '.join(sorted(built))}"


def tracked(patterns: tuple[str, ...]) -> list[str]:
    """Return the files that git tracks or would track below ``patterns``."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    globs = [f":(glob){pattern}**" if pattern.endswith("/") else f":(glob){pattern}" for pattern in patterns]
    done = subprocess.run([*command, *globs], cwd=ROOT, capture_output=True, check=True)
    names = {name for name in done.stdout.decode().split("\0") if name and not NOT_CHECKED.search(name)}
    return sorted(name for name in names if (ROOT / name).is_file())


def main(arguments: list[str]) -> int:
    """Print what is wrong and the count of words; return 1 if a file must be mended or leave the list."""
    pages = [name for name in tracked(PAGES) if name.endswith(".md")]
    code = [name for name in tracked(CODE) if name.endswith((".py", ".pyx", ".pxd", ".pxi", ".pyi"))]
    everything = tracked(("**",))
    folders = {str(parent) for name in everything for parent in Path(name).parents}
    exists = frozenset({*everything, *folders, *(folder.split("/src/")[-1] for folder in folders)} - {"."})
    listed = (
        {line for line in NOT_CLEAN.read_text(encoding="utf-8").splitlines() if line} if NOT_CLEAN.exists() else set()
    )
    dirty: dict[str, list[str]] = {}
    count = 0
    for name in [*pages, *code]:
        source = (ROOT / name).read_text(encoding="utf-8")
        texts = list(markdown_texts(source) if name.endswith(".md") else python_texts(source))
        if Path(name).name.startswith("test_"):  # a test's strings are its data
            texts = [text for text in texts if text.kind != "message"]
        if name.endswith(".md") and "/src/" not in name:
            count += sum(words(text.prose) for text in texts if text.kind == "page")
        found = [f"{name}:{line}: {message}" for line, message in problems(iter(texts), exists)]
        if found:
            dirty[name] = found
    print(f"{count} words in all pages (at most {MOST_PAGE_WORDS})")
    if count > MOST_PAGE_WORDS:
        dirty[COUNT] = [f"{count} words in all pages: at most {MOST_PAGE_WORDS}"]
    if "--shrink" in arguments:
        listed &= set(dirty)
        NOT_CLEAN.write_text("".join(f"{name}\n" for name in sorted(listed)), encoding="utf-8")
    shown = [name for name in arguments if not name.startswith("-")]
    for name, found in dirty.items():
        if name not in listed or any(name.startswith(prefix) for prefix in shown):
            print("\n".join(found))
    clean = sorted(listed - set(dirty))
    for name in clean:
        print(f"{name} is clean: remove it from {NOT_CLEAN.name} (--shrink)")
    return 1 if clean or set(dirty) - listed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
