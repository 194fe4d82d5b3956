"""A hook of mkdocs: a page for each package.

A page has the docstrings and signatures of its public names.

The sources are parsed, not imported, so the site is built without the packages. A page lists what the package's
``__all__`` names; the imports under ``TYPE_CHECKING`` say where each name is defined.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["PACKAGES", "api_page", "on_files"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lattice_embed", "lattice_inference", "lattice_fann", "lattice_transport", "lattice_tune")

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
_ENTRY = re.compile(r"^    (\S[^:]*): (.*)$")
_DIRECTIVE = re.compile(r"\s*# doctest: \S+$")
_DEFAULT = re.compile(r"^(\w+: [^=\"']+)=")  # of an annotated parameter: ast writes no blanks around the sign
_LONGEST_LINE = 80
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those of the manual (mkdocs calls this)."""
    from mkdocs.structure.files import File

    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=api_page(package)))
    return files


def api_page(package: str) -> str:
    """Return the page of a package in Markdown.

    Raises:
        ValueError: a public name is defined nowhere.
    """
    tree = _parse(package)
    lines = [f"# {package}", "", "The docstrings of the package's public names.", ""]
    for name in sorted(_public_names(tree), key=str.lower):
        if not name.startswith("__") and not (_folder(package) / name).is_dir():
            found = _find(package, name)
            if found is None:
                raise ValueError(f"{package}: {name} is in __all__ and is defined nowhere")
            lines += _describe(name, found)
    return "\n".join(lines)


def _describe(name: str, found: _Definition | ast.stmt | Path) -> Iterator[str]:
    """Yield the lines of one name.

    They are a heading, the signature, the docstring, and the public methods of a class.
    """
    yield from (f"## {name}", "")
    if isinstance(found, Path):
        yield from (*_text(ast.get_docstring(ast.parse(found.read_text(encoding="utf-8"))) or ""), "")
    elif isinstance(found, ast.ClassDef):
        made = next(
            (part for part in found.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None
        )
        yield from ("```python", f"class {name}{_arguments(made) if made else ''}", "```", "")
        if found.bases:
            yield from (f"Inherits from {', '.join(f'`{ast.unparse(base)}`' for base in found.bases)}.", "")
        yield from (*_text(ast.get_docstring(found) or ""), "")
        for part in found.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.name.startswith("_"):
                if any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in part.decorator_list):
                    continue
                yield from _function(f"{name}.{part.name}", part, "###")
    elif isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from list(_function(name, found, ""))[2:]
    else:
        yield from ("```python", ast.unparse(found), "```", "")


def _function(name: str, found: ast.FunctionDef | ast.AsyncFunctionDef, heading: str) -> Iterator[str]:
    yield from (f"{heading} {name}", "")
    marks = {mark.id for mark in found.decorator_list if isinstance(mark, ast.Name)}
    if "property" in marks:
        yield from ("```python", f"{name}: {ast.unparse(found.returns) if found.returns else 'Any'}", "```", "")
    else:
        start = "async def" if isinstance(found, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(found.returns)}" if found.returns else ""
        yield from ("```python", f"{start} {name.rpartition('.')[2]}{_arguments(found)}{returns}", "```", "")
    yield from (*_text(ast.get_docstring(found) or ""), "")


def _arguments(found: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the parameters in parentheses; a line each where one line would be long."""
    text = re.sub(r"^(?:self|cls)(?:, |$)", "", ast.unparse(found.args))
    parts = [_DEFAULT.sub(r"\1 = ", part) for part in _split_parameters(text)]
    if len(text) <= _LONGEST_LINE:
        return f"({', '.join(parts)})"
    return "(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def _split_parameters(text: str) -> list[str]:
    """Split at the commas that no bracket or string holds."""
    parts, depth, start, quote = [], 0, 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _text(docstring: str) -> list[str]:
    """Return a docstring as Markdown: sections become lists, roles of Sphinx become code."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring.replace("``", "`"))
    lines: list[str] = []
    in_section = in_example = False
    for line in text.splitlines():
        if not in_example and line.lstrip().startswith(">>> "):  # Markdown would read three quotations in one another
            in_example = True
            lines += ["", "```pycon"]
        elif in_example and not line.strip():
            in_example = False
            lines.append("```")
        if in_example:
            lines.append(_DIRECTIVE.sub("", line.strip()))
        elif heading := _SECTION.match(line):
            in_section = True
            lines += ["", f"**{heading[1]}**", ""]
        elif in_section and line and not line.startswith(" "):
            in_section = False
            lines.append(line)
        elif in_section:
            entry = _ENTRY.match(line)
            lines.append(f"* `{entry[1]}`: {entry[2]}" if entry else f"  {line.strip()}" if line.strip() else "")
        else:
            lines.append(line)
    return [*lines, "```"] if in_example else lines


def _find(package: str, name: str) -> _Definition | ast.stmt | Path | None:
    """Return where a name of a module is defined: a statement, or the file of a module."""
    source = _source(package)
    if source is None:
        return None
    if (place := _source(f"{package}.{name}")) is not None:
        return place
    for node in ast.walk(_parse(package)):
        if isinstance(node, _Definition) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lattice_"):
            for alias in node.names:
                if (alias.asname or alias.name) == name and (found := _find(node.module, alias.name)) is not None:
                    return found
    return None


def _public_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _folder(package: str) -> Path:
    top, *rest = package.split(".")
    return ROOT.joinpath("packages", top.replace("_", "-"), "src", top, *rest)


def _source(module: str) -> Path | None:
    """Return the file of a module; the stub of a compiled one."""
    folder = _folder(module)
    places = (folder / "__init__.py", folder.with_suffix(".py"), folder.with_suffix(".pyi"))
    return next((place for place in places if place.is_file()), None)


@cache
def _parse(module: str) -> ast.Module:
    source = _source(module)
    if source is None:
        raise ValueError(f"there is no module {module}")
    return ast.parse(source.read_text(encoding="utf-8"))
