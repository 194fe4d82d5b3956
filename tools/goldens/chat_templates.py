"""Makes transformers' renderings of chat templates: two published, others of all constructs.

``python tools/goldens/chat_templates.py`` writes the texts into tests/data/chat/templates.json, whose templates and
conversations are written by hand; ``--check`` renders again and compares. With files as arguments (``*.jinja``) it
compares ours with transformers' on these templates and the same conversations instead. Needs transformers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from transformers.utils import chat_template_utils

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "packages" / "lattice-inference" / "tests" / "data" / "chat" / "templates.json"
NOW = datetime.datetime(2026, 3, 1, 12, 30)


class Clock(datetime.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
        """Return the moment at which it stands."""
        return cls(NOW.year, NOW.month, NOW.day, NOW.hour, NOW.minute)


def by_transformers(template: str, conversation: dict[str, Any], special: dict[str, str]) -> str | None:
    """Return the text, ``None`` where the template refuses."""
    with mock.patch.object(chat_template_utils, "datetime", Clock):
        try:
            texts, _ = chat_template_utils.render_jinja_template(
                [conversation["messages"]],
                tools=conversation.get("tools"),
                chat_template=template,
                add_generation_prompt=conversation["add_generation_prompt"],
                **special,
                **conversation.get("variables", {}),
            )
        except Exception as error:
            print(f"  refused: {error}", file=sys.stderr)
            return None
    text: str = texts[0]
    return text


def by_lattice(template: str, conversation: dict[str, Any], special: dict[str, str]) -> str | None:
    from lattice_inference.errors import InvalidInputError, UnsupportedError
    from lattice_inference.tokenizer.chat_template import ChatTemplate

    try:
        return ChatTemplate(template, special).render(
            conversation["messages"],
            tools=conversation.get("tools"),
            add_generation_prompt=conversation["add_generation_prompt"],
            now=NOW,
            **conversation.get("variables", {}),
        )
    except UnsupportedError as error:
        return f"UNSUPPORTED {error}"
    except InvalidInputError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed texts instead of writing them")
    parser.add_argument("templates", nargs="*", type=Path, help="templates to compare ours with transformers' on")
    options = parser.parse_args()
    content = json.loads(TARGET.read_text(encoding="utf-8"))
    special = content["special_tokens"]
    conversations = content["conversations"]
    different = 0
    if options.templates:
        for path in options.templates:
            for name, conversation in conversations.items():
                template = path.read_text(encoding="utf-8")
                theirs = by_transformers(template, conversation, special)
                ours = by_lattice(template, conversation, special)
                if theirs != ours:
                    different += 1
                    print(f"{path.name} / {name}:\n  theirs {theirs!r}\n  ours   {ours!r}")
        print(f"{len(options.templates) * len(conversations)} texts, {different} different")
        return int(different > 0)
    made = {
        template_name: {
            name: by_transformers("\n".join(template), conversation, special)
            for name, conversation in conversations.items()
        }
        for template_name, template in content["templates"].items()
    }
    if options.check:
        print("the committed texts" if content["texts"] == made else "DIFFERENT from the committed texts")
        return int(content["texts"] != made)
    content["texts"] = made
    TARGET.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
