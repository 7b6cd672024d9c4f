"""The inventory objects.inv (Sphinx's format, version 2), with which other projects link to this project's names."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HEADER_LINES = 4


def entries(inventory: Path) -> list[str]:
    """Return the lines of an inventory, one for each name."""
    return zlib.decompress(_split(inventory)[1]).decode().splitlines()


def complete(inventory: Path, version: str, others: Mapping[str, str]) -> None:
    """Remove names with a part that begins with an underscore, and add the version and further names.

    Args:
        inventory: the file that mkdocstrings wrote.
        version: of the package.
        others: the further names, each with the name in the inventory that it stands for.
    """
    public = {line.split(" ", 1)[0]: line for line in entries(inventory) if "._" not in line.split(" ", 1)[0]}
    for name, known in others.items():
        _, kind, priority, address, title = public[known].split(" ", 4)
        public[name] = " ".join((name, kind, priority, address.replace("$", known), title))
    header = re.sub(rb"# Version: .*", b"# Version: " + version.encode(), _split(inventory)[0])
    inventory.write_bytes(header + zlib.compress(("\n".join(public.values()) + "\n").encode(), 9))


def _split(inventory: Path) -> tuple[bytes, bytes]:
    *header, body = inventory.read_bytes().split(b"\n", _HEADER_LINES)
    return b"".join(line + b"\n" for line in header), body
