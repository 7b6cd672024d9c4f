"""The calling process within its run, under dragonhpc's name; see dragon.runtime.run."""

from __future__ import annotations

import base64

from dragon.runtime.run import identity, this_run


class ThisProcess:
    """The calling process. If no run started it, reading an attribute starts one, with this process as its head."""

    @property
    def my_puid(self) -> int:
        """The number of the process, unique in the run."""
        return identity().puid

    @property
    def name(self) -> str:
        """The name of the process in the run."""
        return identity().name

    @property
    def default_pd(self) -> str:
        """The default pool of this node, as base64 text of the argument of MemoryPool.attach()."""
        from dragon.managed_memory import MemoryPool

        return base64.b64encode(MemoryPool.default().serialize()).decode()

    @property
    def index(self) -> int:
        """The index of the process's node."""
        return this_run().node


this_process = ThisProcess()
"""The calling process."""
