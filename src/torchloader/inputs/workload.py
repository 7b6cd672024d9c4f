"""Reads the workload file, one job per row by the names of its columns, each cell in its unit; and the cluster file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated
from xml.parsers import expat

import msgspec
from msgspec import Meta

from torchloader.inputs.job import (
    DEPTHS,
    LATEST,
    Devices,
    InputError,
    Job,
    Mistake,
    Reading,
    Workload,
    known,
    read_jobs,
)

_BRACKETS = {"[": "]", "{": "}", "(": ")"}
_STRING = r"""(?:"[^"]*"|'[^']*')"""
_LIST = re.compile(rf"\[(?:\s*+{_STRING}\s*+,?)+\s*+]")
_PAIR = re.compile(rf"""\s*({_STRING}|[^\s:"'\[\]]+)\s*:\s*(\[[^\]]*]|{_STRING})\s*(?:,|$)""")


def split(line: str) -> list[str]:
    """Return the cells of a row, separated by commas outside quotes and brackets, with surrounding spaces removed."""
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
    """Parse a cell of devices: ["0 1" "0 1"], "0 1" or {'hostA':[0 1]}."""
    text = text.strip()
    if text.startswith("{"):
        return _by_name(text)
    if not text.startswith("["):
        return Devices((_indices(text),))
    if '"' not in text and "'" not in text:
        return Devices((_indices(text[1:-1] if text.endswith("]") else ""),))
    if not _LIST.fullmatch(text):
        raise ValueError('a list with one string of device indices for each node, such as ["0 1" "0 1"]')
    return Devices(tuple(_indices(group[1:-1]) for group in re.findall(_STRING, text)))


def _by_name(text: str) -> Devices:
    inner = text[1:-1] if text.endswith("}") else ""
    pairs = _PAIR.findall(inner)
    if not pairs or _PAIR.sub("", inner).strip():
        raise ValueError("node names with their device indices, such as {'hostA':[0 1]}")
    nodes = tuple(name.strip("\"'") for name, _ in pairs)
    if len(set(nodes)) < len(nodes):
        raise ValueError("every node once")
    return Devices(tuple(_indices(group[1:-1]) for _, group in pairs), nodes)


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


def _cell(kind: object, expected: str) -> Callable[[str], object]:
    """Return what reads a cell of a type, and raises ValueError with what was expected."""

    def read(text: str) -> object:
        try:
            return msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(expected) from None

    return read


def _whole(least: int, most: int | None = None) -> Callable[[str], object]:
    upper = "" if most is None else f" and at most {most}"
    return _cell(Annotated[int, Meta(ge=least, le=most)], f"a whole number of at least {least}{upper}")


def _text(expected: str) -> Callable[[str], object]:
    return _cell(Annotated[str, Meta(min_length=1)], expected)


COLUMNS: dict[str, Callable[[str], object]] = {
    "arch": _text(f"one of {', '.join(DEPTHS)}"),
    "depth": _whole(1),
    "batch": _whole(1),
    "workers": _whole(1),
    "output_folder": _text("a folder"),
    "master": _text("a host name or address"),
    "port": _whole(1, 65535),
    "arrival_time": _cell(Annotated[float, Meta(ge=0, le=LATEST)], f"seconds, from 0 to {LATEST}"),
    "cuda_device": parse_devices,
    "start_iter": _whole(0),
    "start_epoch": _whole(0),
    "end_iter": _whole(1),
    "end_epoch": _whole(0),
    "node_size": _whole(1),
}


class _Row(Reading):
    """A row while it is read: its cells by column."""

    def __init__(self, file: str, number: int, cells: dict[str, str]) -> None:
        super().__init__()
        self.file, self.number, self.cells = file, number, cells

    def wrong(self, name: str, expected: str) -> None:
        self.mistakes.append(Mistake(self.file, self.number, name, repr(self.cells[name]), expected))

    def read(self) -> None:
        for column, reader in COLUMNS.items():
            try:
                self.values[column] = reader(self.cells[column])
            except ValueError as expected:
                self.wrong(column, str(expected))
        arch = self.values.get("arch", "")
        if arch and arch not in DEPTHS:
            self.wrong("arch", f"one of {', '.join(DEPTHS)}")
        elif arch and self.has("depth") and not known(arch, self.values["depth"]):
            self.wrong("depth", f"a depth of {arch}: {', '.join(map(str, DEPTHS[arch]))}")
        if self.has("cuda_device"):
            devices, nodes = self.values["cuda_device"], self.values.get("node_size")
            if nodes not in (None, len(devices.by_node)):
                self.wrong("cuda_device", f"devices of {nodes} node{'s' if nodes > 1 else ''}, as node_size says")
            self.check_shares(devices.count)
        if self.has("start_iter", "end_iter") and self.values["start_iter"] >= self.values["end_iter"]:
            self.wrong("start_iter", f"an iteration before end_iter, which is {self.values['end_iter']}")
        if self.has("start_epoch", "end_epoch") and self.values["start_epoch"] > self.values["end_epoch"]:
            self.wrong("start_epoch", f"an epoch not after end_epoch, which is {self.values['end_epoch']}")

    def job(self, name: str) -> Job:
        values = dict(self.values)
        del values["node_size"]
        return Job(name=name, devices=values.pop("cuda_device"), arrival=values.pop("arrival_time"), **values)


def read_workload(path: str | Path) -> Workload:
    """Read the jobs of a workload file, whose columns may be in any order. A job is named after its network and row."""
    file = str(path)
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        return Workload((), (Mistake(file, None, "", f"invalid UTF-8 at byte {error.start}", "UTF-8", whole=True),))
    written = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not written:
        names = f"a row of column names: {', '.join(COLUMNS)}"
        return Workload((), (Mistake(file, None, "", "nothing", names, whole=True),))
    header, mistakes = _header(file, *written[0])
    if mistakes:
        return Workload((), tuple(mistakes))
    jobs = []
    ports: dict[tuple[str, int], int] = {}
    for place, (number, line) in enumerate(written[1:], 1):
        row = _row(file, number, header, line)
        if isinstance(row, Mistake):
            mistakes.append(row)
            continue
        row.read()
        if row.has("master", "port"):
            first = ports.setdefault((row.values["master"], row.values["port"]), number)
            if first != number:
                row.wrong("port", f"one that no other job has on {row.values['master']}; row {first} has it")
        mistakes += row.mistakes
        if not row.mistakes:
            jobs.append(row.job(f"{row.values['arch']}{row.values['depth']}-{place}"))
    return Workload(tuple(jobs), tuple(mistakes))


def _header(file: str, number: int, line: str) -> tuple[list[str], list[Mistake]]:
    try:
        names = [name.lower() for name in split(line)]
    except ValueError as unclosed:
        return [], [Mistake(file, number, "", repr(line), str(unclosed), whole=True)]
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        found, expected = f"no column {', '.join(missing)}", f"columns {', '.join(COLUMNS)}"
        return names, [Mistake(file, None, "", found, expected, whole=True)]
    repeated = sorted({column for column in COLUMNS if names.count(column) > 1})
    if repeated:
        several, once = "the column more than once", "every column once"
        return names, [Mistake(file, number, ", ".join(repeated), several, once, whole=True)]
    return names, []


def _row(file: str, number: int, header: Sequence[str], line: str) -> _Row | Mistake:
    try:
        cells = split(line)
    except ValueError as expected:
        return Mistake(file, number, "", repr(line), str(expected))
    if len(cells) != len(header):
        return Mistake(file, number, "", f"{len(cells)} cells", f"{len(header)}, one for each column")
    return _Row(file, number, dict(zip(header, cells, strict=True)))


_READERS = {".csv": read_workload, ".toml": read_jobs, ".yaml": read_jobs, ".yml": read_jobs}


def read(path: str | Path) -> Workload:
    """Read the jobs of a CSV, TOML or YAML file, by its suffix."""
    suffix = Path(path).suffix.lower()
    if not Path(path).exists():
        raise _no_workload(path, "no such file")
    if Path(path).is_dir():
        raise _no_workload(path, "a folder")
    if suffix not in _READERS:
        raise _no_workload(path, f"the ending {suffix!r}" if suffix else "no ending")
    return _READERS[suffix](path)


def _no_workload(path: str | Path, found: str) -> InputError:
    return InputError([Mistake(str(path), None, "", found, f"a file that ends in {', '.join(_READERS)}")])


# The cluster file. All its elements are optional, since the run finds the nodes and secures the traffic.
_ELEMENTS = {
    "master_config": ("master_ip", "master_port", "authkey"),
    "worker_config": ("worker_ip", "worker_rpc_port", "worker_socket_port"),
}


class _Doctype(ValueError):
    """Raised for a document type declaration, which could define entities."""


def _tree(file: str, data: bytes) -> tuple[ET.Element, dict[int, int]]:
    """Return the root of a document, and the lines of its elements by their id()."""
    builder, parser, lines = ET.TreeBuilder(), expat.ParserCreate(), dict[int, int]()
    parser.buffer_text = True

    def start(name: str, attributes: dict[str, str]) -> None:
        lines[id(builder.start(name, attributes))] = parser.CurrentLineNumber

    def refuse(*_: object) -> None:
        raise _Doctype

    parser.StartElementHandler = start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    # Entities are defined in a document type alone, and one of them may grow to any size.
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
        return builder.close(), lines
    except _Doctype:
        row, found, expected = parser.CurrentLineNumber, "a document type declaration", "none: entities are not read"
    except expat.ExpatError as error:
        row, found, expected = error.lineno, f"invalid XML: {expat.ErrorString(error.code)}", "well-formed XML"
    raise InputError([Mistake(file, row, "", found, expected)])


def read_hosts(path: str | Path) -> list[str]:
    """Return the hosts of the workers, each once. Raises InputError, with line and element, and OSError."""
    file, mistakes, hosts = str(path), list[Mistake](), list[str]()
    root, lines = _tree(file, Path(path).read_bytes())
    if root.tag != "cluster_config":
        raise InputError([Mistake(file, None, "", f"<{root.tag}>", "<cluster_config>")])
    if len(root.findall("master_config")) > 1:
        mistakes.append(Mistake(file, None, "master_config", "several", "one at most"))
    for element in root:
        texts: dict[str, str] = {}
        for child in element:
            if child.tag not in _ELEMENTS.get(element.tag, ()):
                continue
            text, row = (child.text or "").strip(), lines[id(child)]
            if child.tag in texts:
                mistakes.append(Mistake(file, row, child.tag, "the element once more", "it once"))
            elif child.tag.endswith("_port") and text and not (text.isdecimal() and 0 < int(text) < 65536):
                mistakes.append(Mistake(file, row, child.tag, repr(text), "a port, 1 to 65535"))
            if text:
                texts[child.tag] = text
        hosts += [texts["worker_ip"]] if "worker_ip" in texts else []
    if mistakes:
        raise InputError(mistakes)
    return list(dict.fromkeys(hosts))
