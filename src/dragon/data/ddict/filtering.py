"""Items of a dictionary that functions choose where they lie."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dragon.infrastructure.ddict_errors import DDictError
from dragon.infrastructure.policy import Policy
from dragon.runtime.nodes import node_at

if TYPE_CHECKING:
    from dragon.data.ddict.ddict import DDict
    from dragon.native.process import Process
    from dragon.runtime.handle import Channel

__all__ = ["FilterContextManager", "FilterIterator"]

_AHEAD = 256  # items that a manager's function may be ahead of who takes them


class _End:
    """What follows the last item: the error that ended the function, if one did."""

    def __init__(self, error: str = "") -> None:
        self.error = error


def _choose(ddict: DDict, code: Callable[..., Iterable[Any]], arguments: tuple[Any, ...], queue: Channel) -> None:
    try:
        for item in code(ddict, *arguments):
            queue.put(item)
    except Exception as error:
        queue.put(_End(f"{type(error).__name__}: {error}"))
        raise
    queue.put(_End())


class FilterIterator:
    """The items of all managers, merged."""

    def __init__(self, queues: list[Channel], comparator: Callable[[Any, Any], Any]) -> None:
        key = functools.cmp_to_key(functools.partial(_compare, comparator))
        self._merged = heapq.merge(*(_items(manager, queue) for manager, queue in enumerate(queues)), key=key)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._merged)


def _compare(comparator: Callable[[Any, Any], Any], left: Any, right: Any) -> int:
    """What a comparator says: whether the first comes before the second, or a number as of functools.cmp_to_key."""
    answer = comparator(left, right)
    if not isinstance(answer, bool):
        return int(answer)
    return -1 if answer else int(bool(comparator(right, left)))


def _items(manager: int, queue: Channel) -> Iterator[Any]:
    while not isinstance(item := queue.get(), _End):
        yield item
    if item.error:
        raise DDictError(f"the function of a filter failed on manager {manager}: {item.error}", "FILTER")


class FilterContextManager:
    """Has a process beside each manager choose items; in the block they are iterated over in order."""

    def __init__(
        self,
        ddict: DDict,
        code: Callable[..., Iterable[Any]],
        arguments: tuple[Any, ...],
        comparator: Callable[[Any, Any], Any],
    ) -> None:
        self._ddict = ddict
        self._code = code
        self._arguments = arguments
        self._comparator = comparator
        self._processes: list[Process] = []

    def __enter__(self) -> FilterIterator:
        from dragon.native.process import Process
        from dragon.runtime.handle import Channel

        queues = []
        for shard in self._ddict._open_shards():
            queue = Channel(_AHEAD)
            node = node_at(shard.settings.node)
            policy = Policy(placement=Policy.Placement.HOST_ID, host_id=node.h_uid)
            mine = self._ddict.manager(shard.settings.manager)
            process = Process(_choose, (mine, self._code, self._arguments, queue), policy=policy)
            process.start()
            self._processes.append(process)
            queues.append(queue)
        return FilterIterator(queues, self._comparator)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
