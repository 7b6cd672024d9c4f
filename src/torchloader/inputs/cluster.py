"""Reads the cluster file. All its elements are optional, since the run finds the nodes and secures the traffic."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from xml.parsers import expat

from torchloader.inputs.job import InputError, Mistake

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
