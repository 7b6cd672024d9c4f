"""The loading workers of a rank, some of them on other nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torchloader.loader import ElasticDataLoader

__all__ = ["resize", "this_node"]

_log = logging.getLogger(__name__)


def this_node() -> str:
    """Return the name of this node, as the run has it."""
    # Only here: a program that runs alone needs no runtime.
    from dragon.native.machine import current

    return current().hostname


def resize(loader: ElasticDataLoader, workers: int, away: Sequence[str]) -> None:
    """Have a loader have so many workers, one on each of the nodes in `away` and the others on this one.

    Where the loader was made with a start method of its own its workers are all on this node, and those that were to be
    on others are left out, as their cores are not those of this node. A node that is lost meanwhile has this one take
    its place. Raises ValueError where the loader is closed.
    """
    if loader.workers_on is None:
        if away:
            _log.warning(
                "the loader has a start method of its own (multiprocessing_context), so %d of its %d workers, which "
                "were to be on %s, are left out",
                len(away),
                workers,
                ", ".join(sorted(set(away))),
            )
        loader.resize(max(1, workers - len(away)) if away else workers)
        return
    from dragon.native.machine import System

    here = this_node()
    there = {policy.host_name for policy in System().hostname_policies()}
    others = [name if name in there else here for name in away]
    loader.resize(workers, [here] * (workers - len(away)) + others or here)
