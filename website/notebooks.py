"""Tutorials as notebooks: their text, and their Python blocks as cells."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["notebook", "outputs"]

_LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?://)[^)]*\)")  # a link to a file of the repository
_BLOCK = re.compile(r"^```(py|text)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def notebook(page: str) -> str:
    """Return a page as a notebook in JSON (nbformat 4.5), in which each block of Python is a cell without outputs.

    Links to files of the repository are replaced by their text, because a notebook may be opened anywhere.
    """
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str) -> None:
        if kind == "markdown":
            text = _LINK.sub(r"\1", text)
        if text := text.strip("\n"):
            more: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
            cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": text}
            cells.append(cell | more)

    place = 0
    for block in _BLOCK.finditer(page):
        add("markdown", page[place : block.start()])
        if block[1] == "py":
            add("code", block[2])
        place = block.end()
    add("markdown", page[place:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def outputs(page: str) -> list[str]:
    """Return the output that the page shows for each cell, in the order of the cells; "" if the page shows none."""
    shown: list[str] = []
    for kind, text in _BLOCK.findall(page):
        if kind == "py":
            shown.append("")
        else:
            shown[-1] = text
    return shown
