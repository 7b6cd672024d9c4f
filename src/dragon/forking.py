"""The first steps of a process that was forked by `os.fork()`, and of one that is to look like a child of another."""

from __future__ import annotations

from dragon.cpython import be_daemon, call_fork_hooks, forget_finalizers

__all__ = ["be_daemon", "begin_child"]


def begin_child() -> None:
    """Release the parent's finalizers and connections, as a child that `multiprocessing` forks does.

    Without this call a proxy of a `multiprocessing.Manager` uses the parent's connection, at the same time as the
    parent.
    """
    forget_finalizers()
    call_fork_hooks()
