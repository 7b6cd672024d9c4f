"""What a process is within its run, under the name that programs know; see dragon.runtime.run."""

from __future__ import annotations

import base64

from dragon.runtime.run import identity, this_run

__all__ = ["ThisProcess", "this_process"]


class ThisProcess:
    """The calling process. One that no run started starts one here, and is its head."""

    @property
    def my_puid(self) -> int:
        """Its id in the run."""
        return identity().puid

    @property
    def name(self) -> str:
        """Its name in the run."""
        return identity().name

    @property
    def default_pd(self) -> str:
        """This node's default pool, as base64 text of what MemoryPool.attach() takes."""
        from dragon.managed_memory import MemoryPool

        return base64.b64encode(MemoryPool.default().serialize()).decode()

    @property
    def index(self) -> int:
        """The index of its node."""
        return this_run().node


this_process = ThisProcess()
