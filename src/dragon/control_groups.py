"""The limits and events of the control groups of this process, of version 1 or 2.

A limit of a group holds for its descendants, so the least one of a group and its parents counts. In a container the
path of the group may be the machine's, while the container sees only its own group, at the mount: folders that do not
exist are skipped. `root` is the folder that has proc and sys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "MemoryKills", "cpu_quota", "folders", "memory_kills", "memory_limit"]

ROOT = Path("/")


def folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of the groups that a controller, such as "cpu" or "memory", confines this process by, the
    innermost first. None on a system without control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            own = (mounts, mounts / "unified")
        elif controller in controllers.split(","):
            own = (mounts / controllers, mounts / controller)
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for mount in dict.fromkeys(own):
            yield from (mount.joinpath(*parts[:length]) for length in range(len(parts), -1, -1))


def cpu_quota(root: Path = ROOT) -> float:
    """Return the number of cores that the groups allow; infinite without a quota."""
    least = math.inf
    for folder in folders("cpu", root):
        words = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        quota, period = words if len(words) == 2 else ("max", "")
        if quota.isdigit() and period.isdigit() and int(period):
            least = min(least, int(quota) / int(period))
    return least


def memory_limit(root: Path = ROOT) -> float:
    """Return the bytes of memory that the groups allow; infinite without a limit."""
    least = math.inf
    for folder in folders("memory", root):
        words = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        if words and words[0].isdigit():  # not "max"
            least = min(least, int(words[0]))
    return least


def memory_kills(root: Path = ROOT) -> int:
    """Return how many processes the kernel has killed for lack of memory: in the group of this process, or on the
    machine if its groups do not count them. 0 if nothing counts them."""
    for folder in folders("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            count = _entry(folder / name, "oom_kill")
            if count is not None:
                return count
    return _entry(root / "proc/vmstat", "oom_kill") or 0


class MemoryKills:
    """The processes that the kernel has killed for lack of memory since this object was made.

    Args:
        root: the folder that has proc and sys.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root, self._known = root, memory_kills(root)

    def explain(self) -> str:
        """Return the reason for a SIGKILL if there were such kills since the last call; else an empty string.

        The kernel does not tell which process it has killed, so another one may have been, at about the same time.
        """
        before, self._known = self._known, memory_kills(self._root)
        if self._known <= before:
            return ""
        limit = memory_limit(self._root)
        where = f"its control group has a limit of {limit / 2**20:,.0f} MiB" if limit < 2**60 else "the machine is full"
        return f"the kernel kills processes for lack of memory: {where}"


def _words(file: Path) -> list[str]:
    """Return the words of a file; none if it does not exist or may not be read."""
    try:
        return file.read_text().split()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _entry(file: Path, name: str) -> int | None:
    """Return the number after a name in a file of names and numbers; None if there is none."""
    words = _words(file)
    return next((int(number) for each, number in zip(words[::2], words[1::2], strict=False) if each == name), None)
