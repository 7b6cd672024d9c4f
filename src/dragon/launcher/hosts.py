"""Host names: expands abbreviated lists, and reads host files and network configuration files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

_MOST = 100_000
_RANGES = re.compile(r"\[([^\]\[]*)\]")


def expand(text: str) -> list[str]:
    """Return the hosts of a list like `gpu[01-03,7],login`, in its order. Raises ValueError for an invalid list."""
    hosts = []
    for part in _split(text):
        hosts += _expand_one(part)
    return hosts


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError(f"{text!r} has brackets that do not match")
        if letter == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    if depth:
        raise ValueError(f"{text!r} has brackets that do not match")
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def _expand_one(part: str) -> list[str]:
    found = _RANGES.search(part)
    if found is None:
        return [part]
    before, after = part[: found.start()], part[found.end() :]
    return [f"{before}{number}{rest}" for number in _numbers(found[1]) for rest in _expand_one(after)]


def _numbers(text: str) -> Iterable[str]:
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(f"{item!r} is not a number or a range of numbers")
        if int(last or first) - int(first) >= _MOST:
            raise ValueError(f"{item!r} is a range of more than {_MOST} hosts")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"


def unique(hosts: Iterable[str]) -> list[str]:
    """Return each host once, in the order of first occurrences."""
    return list(dict.fromkeys(hosts))


def read_host_file(path: str) -> list[str]:
    """Read a file with one host per line; `#` begins a comment, and words after the first (`slots=4`) are ignored."""
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    hosts = unique(host for words in lines if words for host in expand(words[0]))
    if not hosts:
        raise ValueError(f"{path} names no hosts")
    return hosts


def read_network_config(path: str) -> list[str]:
    """Return the hosts of a file that `dragon-network-config` wrote, YAML or JSON, the primary first."""
    data = Path(path).read_bytes()
    try:
        content: Any = msgspec.json.decode(data) if path.endswith(".json") else msgspec.yaml.decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is neither YAML nor JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} has no nodes; `dragon-network-config` shows what it should look like")
    nodes = sorted(content.items(), key=lambda item: (not _value(path, item[1], "is_primary"), _number(path, item[0])))
    return unique(str(_value(path, node, "host_name") or _value(path, node, "name")) for _, node in nodes)


def _number(path: str, key: Any) -> int:
    try:
        return int(key)
    except ValueError:
        raise ValueError(f"{path}: the keys must be numbers of nodes, not {key!r}") from None


def _value(path: str, node: Any, name: str) -> Any:
    if not isinstance(node, dict) or not (node.get("host_name") or node.get("name")):
        raise ValueError(f"{path}: a node must have a host_name, and {node!r} has none")
    return node.get(name)
