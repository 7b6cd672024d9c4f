"""Sets the loading workers of a rank, some of which may run on other nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torchloader.loader import ElasticDataLoader

__all__ = ["resize", "this_node"]

_log = logging.getLogger(__name__)


def this_node() -> str:
    """Return the name of this node in the run."""
    # Imported here, as a program that runs alone needs no runtime.
    from dragon.native.machine import current

    return current().hostname


def resize(loader: ElasticDataLoader, workers: int, away: Sequence[str]) -> None:
    """Set the number of a loader's workers: one on each of the nodes in `away`, the others on this node.

    If the loader was made with a start method of its own, its workers all run on this node, and those in `away` are
    left out, as their cores are not those of this node. A lost node is replaced by this one. Raises ValueError if the
    loader is closed.
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
