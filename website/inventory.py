"""objects.inv: what other projects link to this one's names by (Sphinx's format, version 2)."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HEADER_LINES = 4


def entries(inventory: Path) -> list[str]:
    """The lines of an inventory, one for each name."""
    return zlib.decompress(_split(inventory)[1]).decode().splitlines()


def complete(inventory: Path, version: str, others: Mapping[str, str]) -> None:
    """Leave out names with a part that begins with an underscore, and add the version and further names.

    Args:
        inventory: what mkdocstrings wrote.
        version: of the package.
        others: the further names, and for each the one that the inventory has.
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
