"""The pages of docs/, of the examples and of the root, placed as the website has them."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from website import gallery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_AT_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_CODE_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
# Pages on which `Queue` and similar names are those of multiprocessing.
_OF_MULTIPROCESSING = {"from_multiprocessing.md", "examples/telemetry/README.md", "benchmarks.md", "index.md"}
# Code spans that are not linked: in a heading, in a link's text, with more than one backtick.
_SPAN = re.compile(r"(?<![`\[])`([A-Za-z_][\w.]*)(\(\)|\([^`]*\))?`(?![`\]])")


@dataclass(frozen=True)
class Page:
    """A page of the website that comes from the repository."""

    source: Path
    at: str  # path in the website's folder of pages
    text: str

    @property
    def title(self) -> str:
        """The first heading of the page."""
        return next(line[2:] for line in self.text.splitlines() if line.startswith("# "))


def stage(root: Path, folder: Path, names: Mapping[str, str]) -> list[Page]:
    """Copy all pages, and the files that they show or link to, into a folder.

    Args:
        root: the repository.
        folder: the generator's input folder.
        names: identifiers of the reference by the names that documents use.

    Raises:
        SystemExit: a page links to a file that the repository does not have.
    """
    places = {path: path.relative_to(root / "docs").as_posix() for path in sorted((root / "docs").rglob("*.md"))}
    places |= {path: path.relative_to(root).as_posix() for path in sorted((root / "examples").rglob("*.md"))}
    places |= {root / name: name for name in _AT_ROOT}
    placed = []
    for source, at in places.items():
        written = source.read_text()
        if at == "gallery.md":
            written = gallery.expanded(written, root)
        text = _linked(written, source, root, folder, places, at)
        page = Page(source, at, text)
        target = folder / at
        target.parent.mkdir(parents=True, exist_ok=True)
        theirs = set(multiprocessing.__all__) if at in _OF_MULTIPROCESSING else set()
        known = {name: identifier for name, identifier in names.items() if name not in theirs}
        target.write_text(_outside_code(text, functools.partial(_named, names=known)))
        placed.append(page)
    return placed


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = _CODE_BLOCK.split(text)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _named(text: str, names: Mapping[str, str]) -> str:
    """Return the text with links to the reference for code spans that name something public."""

    def linked(match: re.Match[str]) -> str:
        identifier = names.get(match[1])
        return f"[{match[0]}][{identifier}]" if identifier else match[0]

    lines = [line if line.startswith("#") else _SPAN.sub(linked, line) for line in text.split("\n")]
    return "\n".join(lines)


def _linked(text: str, source: Path, root: Path, folder: Path, places: Mapping[Path, str], at: str) -> str:
    """Return the text with its links changed to those of the website."""

    def moved(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"\w+:", target):
            return match[0]
        path = (source.parent / target).resolve()
        if path.is_dir() and (path / "README.md") in places:
            path = path / "README.md"
        place = places.get(path) or _copied(path, root, folder, f"{source}: {target}")
        return f"{match[1]}{os.path.relpath(place, os.path.dirname(at) or '.')}{match[3] or ''}{match[4]}"

    return _outside_code(text, lambda part: _LINK.sub(moved, part))


def _copied(path: Path, root: Path, folder: Path, link: str) -> str:
    """Copy a file that is not a page: pictures of docs/ beside the pages, all others into the folder `files`. Return
    its path.
    """
    if not path.is_file():
        raise SystemExit(f"{link}: no such page or file")
    docs = root / "docs"
    at = path.relative_to(docs).as_posix() if path.is_relative_to(docs) else f"files/{path.relative_to(root)}"
    target = folder / at
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    return at
