"""The gallery: below each heading of docs/gallery.md that links to a program, insert the program, its output and its
picture.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROGRAM = re.compile(r"^### \[(.+)\]\((.+\.py)\)$", re.MULTILINE)
_FOLDER = "examples/gallery"


@dataclass(frozen=True)
class Program:
    """A program of the gallery. Its output and picture are in examples/gallery under its name."""

    title: str
    path: Path
    output: str
    picture: Path | None

    @property
    def about(self) -> str:
        """The docstring of the program."""
        return ast.get_docstring(ast.parse(self.path.read_text())) or ""

    @property
    def code(self) -> str:
        """The source of the program below its docstring."""
        text = self.path.read_text()
        return text.split('"""', 2)[2].lstrip() if self.about else text


def programs(root: Path) -> Iterator[Program]:
    """Yield the programs in the order of the page."""
    for match in _PROGRAM.finditer((root / "docs" / "gallery.md").read_text()):
        yield _program(root, match)


def expanded(text: str, root: Path) -> str:
    """Return the text of the page with the programs inserted."""

    def shown(match: re.Match[str]) -> str:
        program = _program(root, match)
        parts = [
            f"### {program.title}",
            program.about,
            f'```python title="{program.path.name}"\n{program.code}```',
            f'```text title="prints"\n{program.output}```',
        ]
        if program.picture:
            parts.append(f"![What {program.path.name} draws](../{_FOLDER}/{program.picture.name})")
        return "\n\n".join(part for part in parts if part)

    return _PROGRAM.sub(shown, text)


def _program(root: Path, match: re.Match[str]) -> Program:
    path = (root / "docs" / match[2]).resolve()
    kept = root / _FOLDER / path.name
    picture = kept.with_suffix(".png")
    return Program(match[1], path, kept.with_suffix(".out").read_text(), picture if picture.is_file() else None)
