"""The nodes of the run, as its agents list them in the run's folder.

`nodes.json` lists them in order of index. It is rewritten when a node is lost, and the other nodes keep their indices:
find a node by `index`, never by its position in the list.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dragon.infrastructure import variables
from dragon.infrastructure.errors import DragonNodeError
from dragon.runtime.run import current_run, in_run, this_run

if TYPE_CHECKING:
    from dragon.infrastructure.node_desc import NodeDescriptor

_FILE = "nodes.json"

# The file that was read last: (path, inode, time of change), and its contents.
_seen: tuple[tuple[str, int, int] | None, list[NodeDescriptor]] = (None, [])


def run_nodes() -> list[NodeDescriptor]:
    """Return the nodes of the run, the primary one first; this machine if the run has no list. Starts no run."""
    global _seen
    run = current_run()
    folder = str(run.folder) if run is not None else os.environ.get(variables.RUN, "")
    if not folder:
        return [_this_node()]
    path = os.path.join(folder, _FILE)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return [_this_node()]
    key = (path, status.st_ino, status.st_mtime_ns)
    if key != _seen[0]:
        from dragon.infrastructure.node_desc import NodeDescriptor
        from dragon.infrastructure.structs import msgspec

        _seen = (key, msgspec.json.decode(Path(path).read_bytes(), type=list[NodeDescriptor]))
    return _seen[1]


@functools.cache
def _this_node() -> NodeDescriptor:
    from dragon.infrastructure.node_desc import describe_this_node  # not imported before: few processes need it

    return describe_this_node()


def write_nodes(folder: Path, nodes: list[NodeDescriptor]) -> None:
    """Write the list of a run's nodes atomically: processes see the old list or the new one."""
    from dragon.infrastructure.structs import msgspec

    temporary = folder / f".{_FILE}.{os.getpid()}"
    temporary.write_bytes(msgspec.json.encode(sorted(nodes, key=lambda node: node.index)))
    temporary.chmod(0o600)
    temporary.rename(folder / _FILE)


def own_node() -> NodeDescriptor:
    """Return the node of this process."""
    nodes = run_nodes()
    if len(nodes) == 1 or not in_run():
        return nodes[0]
    own = getattr(this_run(), "node", 0)
    return next((node for node in nodes if node.index == own), nodes[0])


def node_at(index: int) -> NodeDescriptor:
    """Return the node of that index. Raises LookupError if it is not part of the run."""
    for node in run_nodes():
        if node.index == index:
            return node
    raise LookupError(f"the run has no node {index} (any more)")


def find_node(name: str) -> NodeDescriptor | None:
    """Return the node of a host name as a user writes it, or None; "localhost" is the caller's node."""
    if name == "localhost":
        return own_node()
    nodes = run_nodes()
    for node in nodes:
        if node.host_name == name:
            return node
    return next((node for node in nodes if same_host(name, node.host_name)), None)


def query(identifier: str | int) -> NodeDescriptor:
    """Return the node of that host name or host id. Raises DragonNodeError, which lists the existing nodes."""
    found = find_node(identifier) if isinstance(identifier, str) else None
    found = found or next((node for node in run_nodes() if node.h_uid == identifier), None)
    if found is not None:
        return found
    names = ", ".join(node.host_name for node in run_nodes())
    raise DragonNodeError(f"this run has no node {identifier!r}; it has {names}")


def query_total_cpus() -> int:
    """Return the number of CPUs that the run may use on all nodes together."""
    return sum(node.num_cpus for node in run_nodes())


def same_host(one: str, other: str) -> bool:
    """Return whether two names mean the same host: one is the other, or its beginning up to a dot. Ignores case."""
    ours, theirs = one.lower().split("."), other.lower().split(".")
    shorter = min(len(ours), len(theirs))
    return ours[:shorter] == theirs[:shorter]
