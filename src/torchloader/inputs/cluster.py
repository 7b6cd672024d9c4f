"""Reads the cluster file. All its elements are optional, since the run finds the nodes and secures the traffic."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from torchloader.inputs.job import InputError, Mistake


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """The address of the master. repr() does not show the key."""

    ip: str | None = None  # address or host name, None if not given
    port: int | None = None  # TCP port, None if not given
    authkey: str | None = field(default=None, repr=False)  # key with which workers authenticate, None if not given


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The address of a worker."""

    ip: str | None = None  # address or host name; None is the host that reads the file
    rpc_port: int | None = None  # TCP port for calls, None if not given
    socket_port: int | None = None  # TCP port for data, None if not given


@dataclass(frozen=True, slots=True)
class Cluster:
    """The content of a cluster file. Several workers may share a host; `ignored` are elements that have no effect."""

    master: MasterSettings = MasterSettings()
    workers: tuple[WorkerSettings, ...] = ()
    ignored: tuple[str, ...] = ()


_MASTER = ("master_ip", "master_port", "authkey")
_WORKER = ("worker_ip", "worker_rpc_port", "worker_socket_port")


class _Doctype(ValueError):
    """Raised for a document type declaration, which could define entities."""


@dataclass
class _Reading:
    """The elements of one file while they are read."""

    file: str
    lines: dict[int, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def tree(self, data: bytes) -> ET.Element:
        builder = ET.TreeBuilder()
        parser = expat.ParserCreate()
        parser.buffer_text = True

        def start(name: str, attributes: dict[str, str]) -> None:
            self.lines[id(builder.start(name, attributes))] = parser.CurrentLineNumber

        def refuse(*_: object) -> None:
            raise _Doctype

        parser.StartElementHandler = start
        parser.EndElementHandler = builder.end
        parser.CharacterDataHandler = builder.data
        # Entities are defined in a document type alone, and one of them may grow to any size.
        parser.StartDoctypeDeclHandler = refuse
        try:
            parser.Parse(data, True)
        except _Doctype:
            self._stop(parser.CurrentLineNumber, "a document type declaration", "none: entities are not read")
        except expat.ExpatError as error:
            self._stop(error.lineno, f"invalid XML: {expat.ErrorString(error.code)}", "well-formed XML")
        return builder.close()

    def _stop(self, row: int, found: str, expected: str) -> None:
        raise InputError([Mistake(self.file, row, "", found, expected)])

    def children(self, element: ET.Element, names: tuple[str, ...]) -> dict[str, str]:
        """Return the non-empty texts of an element's children, by tag."""
        found: dict[str, str] = {}
        for child in element:
            text = (child.text or "").strip()
            if child.tag not in names:
                self.ignored.append(f"{element.tag}/{child.tag}")
            elif child.tag in found:
                self.mistakes.append(self._at(child, "the element once more", "it once"))
            elif text:
                found[child.tag] = text
                if child.tag.endswith("_port") and not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
                    self.mistakes.append(self._at(child, repr(text), "a port, 1 to 65535"))
                    del found[child.tag]
        return found

    def _at(self, element: ET.Element, found: str, expected: str) -> Mistake:
        return Mistake(self.file, self.lines[id(element)], element.tag, found, expected)


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster file. Raises InputError, with line and element, and OSError."""
    reading = _Reading(str(path))
    root = reading.tree(Path(path).read_bytes())
    if root.tag != "cluster_config":
        raise InputError([Mistake(str(path), None, "", f"<{root.tag}>", "<cluster_config>")])
    master = MasterSettings()
    workers = []
    for element in root:
        if element.tag == "master_config":
            told = reading.children(element, _MASTER)
            master = MasterSettings(told.get("master_ip"), _port(told, "master_port"), told.get("authkey"))
        elif element.tag == "worker_config":
            told = reading.children(element, _WORKER)
            ports = _port(told, "worker_rpc_port"), _port(told, "worker_socket_port")
            workers.append(WorkerSettings(told.get("worker_ip"), *ports))
        else:
            reading.ignored.append(element.tag)
    if len(root.findall("master_config")) > 1:
        reading.mistakes.append(Mistake(str(path), None, "master_config", "several", "one at most"))
    if reading.mistakes:
        raise InputError(reading.mistakes)
    return Cluster(master, tuple(workers), tuple(reading.ignored))


def _port(told: dict[str, str], name: str) -> int | None:
    return int(told[name]) if name in told else None
