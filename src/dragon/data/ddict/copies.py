"""Several dictionaries that hold the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from dragon.data.ddict import creation
from dragon.data.ddict.checks import check_name
from dragon.data.ddict.parts import Parts
from dragon.data.ddict.persistence import NULLCheckpointPersister
from dragon.infrastructure.ddict_errors import DDictError, DDictSyncError

__all__ = ["Copies"]


class Copies(Parts):
    """What of a handle concerns copies."""

    def copy(self, name: str = "") -> Self:
        """Another dictionary with managers in the same places, each with all that it holds; its handle begins in the
        oldest checkpoint.

        That of a read-only one can be written. Raises DDictError for a handle that did not make the dictionary.
        """
        if not self._creator:
            raise DDictError(
                f"only the handle that made the dictionary {self._options.name!r} can copy it; make one of the same "
                "size and clone() this one into it",
                "INVALID_ARGUMENT",
            )
        check_name(name, self._options.persister != NULLCheckpointPersister.kind)
        nodes = [settings.node for settings in self._descriptor.shards]
        first = self._oldest()
        options = msgspec.structs.replace(
            self._options, name=name or creation.new_name(), read_only=False, first=first, empty=[]
        )
        total_mem = sum(settings.capacity for settings in self._descriptor.shards)
        copied = type(self).__new__(type(self))
        copied._open(*creation.create(nodes, total_mem, options))
        copied._creator = True
        copied._checkpoint = first
        self._copy_to(copied)
        return copied

    def clone(self, clone_list: Iterable[str]) -> None:
        """Have the dictionaries that the texts of serialize() name hold what this one does, and nothing else.

        With as many managers and a working set of that size they hold all checkpoints, each key with the same manager.
        Otherwise they hold what is seen here, in the first checkpoint, each key where restore() would have it.
        """
        for text in clone_list:
            self._copy_to(type(self).attach(text))

    @classmethod
    def synchronize_ddicts(cls, serialized_ddicts: Iterable[str]) -> None:
        """Fill managers that are empty in some of these dictionaries from one where they are not.

        Raises DDictSyncError where the dictionaries have different numbers of managers, or different working sets.
        """
        ddicts = [cls.attach(text) for text in serialized_ddicts]
        if len({(ddict._count, ddict._options.working_set_size) for ddict in ddicts}) > 1:
            raise DDictSyncError("the dictionaries have different numbers of managers, or different working sets")
        for manager in range(ddicts[0]._count if ddicts else 0):
            usages = [ddict._open_shards()[manager].begin("usage") for ddict in ddicts]
            records = [usage.result(ddict._timeout)["records"] for ddict, usage in zip(ddicts, usages, strict=True)]
            source = next((ddict for ddict, count in zip(ddicts, records, strict=True) if count), None)
            for ddict, count in zip(ddicts, records, strict=True):
                if source is not None and not count:
                    source._copy_to(ddict, [manager])
