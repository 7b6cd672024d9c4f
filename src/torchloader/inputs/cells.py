"""Splits a workload's rows into cells with quotes and lists, and parses lists of devices."""

from __future__ import annotations

import re

from torchloader.inputs.job import Devices

__all__ = ["parse_devices", "split"]

_BRACKETS = {"[": "]", "{": "}", "(": ")"}
_GROUP = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s"',]+))\s*,?""")
_PAIR = re.compile(
    r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s:"'\[\]]+))\s*:\s*(?:\[([^\]]*)\]|"([^"]*)"|'([^']*)')\s*(?:,|$)"""
)


def split(line: str) -> list[str]:
    """Return the cells of a row, separated by commas outside quotes and brackets, with surrounding spaces removed.

    Raises ValueError if a quote or a bracket is not closed.
    """
    cells: list[str] = []
    cell: list[str] = []
    closing: list[str] = []
    quote = ""
    place = 0
    while place < len(line):
        character = line[place]
        if quote:
            if character == quote == '"' and not closing and line[place + 1 : place + 2] == '"':
                place += 1  # two quotes in a quoted cell are one
                cell.append('"')
                character = ""
            elif character == quote:
                quote = ""
        elif character == "," and not closing:
            cells.append(_bare("".join(cell)))
            cell, character = [], ""
        elif character in "\"'" and (closing or not "".join(cell).strip()):
            quote = character
        elif character in _BRACKETS:
            closing.append(_BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        cell.append(character)
        place += 1
    if quote or closing:
        raise ValueError(f"{quote or closing[-1]} to close what was opened")
    return [*cells, _bare("".join(cell))]


def parse_devices(text: str) -> Devices:
    """Parse a cell of devices: ["0 1" "0 1"], "0 1" or {'hostA':[0 1]}.

    Raises ValueError, whose text is what was expected.
    """
    text = text.strip()
    if text.startswith("{"):
        return _by_name(text)
    if text.startswith("["):
        inner = text[1:-1] if text.endswith("]") else ""
        if '"' not in inner and "'" not in inner:
            return Devices((_indices(inner),))
        groups, place = [], 0
        while place < len(inner.rstrip()):
            found = _GROUP.match(inner, place)
            if found is None or found[3] is not None:
                raise ValueError('a list with one string of device indices for each node, such as ["0 1" "0 1"]')
            groups.append(_indices(found[1] if found[1] is not None else found[2]))
            place = found.end()
        return Devices(tuple(groups))
    return Devices((_indices(text),))


def _by_name(text: str) -> Devices:
    inner = text[1:-1].strip() if text.endswith("}") else ""
    nodes, groups, place = [], [], 0
    while place < len(inner):
        found = _PAIR.match(inner, place)
        if found is None:
            break
        nodes.append(found[1] or found[2] or found[3])
        groups.append(_indices(found[4] or found[5] or found[6] or ""))
        place = found.end()
    if not nodes or place < len(inner):
        raise ValueError("node names with their device indices, such as {'hostA':[0 1]}")
    if len(set(nodes)) < len(nodes):
        raise ValueError("every node once")
    return Devices(tuple(groups), tuple(nodes))


def _indices(text: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if not words:
        raise ValueError("at least one device index for every node")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError("device indices that are whole numbers from 0 on")
    found = tuple(int(word) for word in words)
    if len(set(found)) < len(found):
        raise ValueError("every device index of a node once")
    return found


def _bare(cell: str) -> str:
    cell = cell.strip()
    if len(cell) > 1 and cell[0] == cell[-1] and cell[0] in "\"'":
        return cell[1:-1].strip()
    return cell
