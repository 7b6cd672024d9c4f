"""The views of a dictionary, and its filters: functions that run beside the managers and choose items."""

from __future__ import annotations

import functools
import heapq
import inspect
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from queue import Empty
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from dragon.data.ddict.handle import Handle, equal
from dragon.infrastructure.ddict_errors import DDictError
from dragon.infrastructure.generic import K, V
from dragon.infrastructure.policy import Policy
from dragon.runtime.handle import Channel
from dragon.runtime.nodes import node_at

if TYPE_CHECKING:
    from dragon.native.process import Process


class DDictMappingProxy(Generic[K, V]):
    """A read-only view of a dictionary.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(1, 1, 16 * 2**20) as ddict:
        ...     ddict["a"] = 1
        ...     ddict.keys().mapping["a"]
        1
    """

    def __init__(self, ddict: Mapping[K, V]) -> None:
        self._ddict = ddict

    def __contains__(self, key: object) -> bool:
        return key in self._ddict

    def __getitem__(self, key: K) -> V:
        return self._ddict[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._ddict)

    def __len__(self) -> int:
        return len(self._ddict)

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value of a key, or `default`."""
        return self._ddict.get(key, default)

    def keys(self) -> KeysView[K]:
        """Return a view of all keys."""
        return self._ddict.keys()

    def values(self) -> ValuesView[V]:
        """Return a view of all values."""
        return self._ddict.values()

    def items(self) -> ItemsView[K, V]:
        """Return a view of all keys with their values."""
        return self._ddict.items()

    def copy(self) -> dict[K, V]:
        """Return the current contents as a dict."""
        return dict(self._ddict.items())


class _View:
    """A view that reads the dictionary each time it is used. `managers` limits it to some managers."""

    def __init__(self, ddict: Handle, managers: list[int] | None = None) -> None:
        self._ddict = ddict
        self._managers = managers

    @property
    def mapping(self) -> DDictMappingProxy:
        """A read-only view of the dictionary. Raises NotImplementedError for a view of local keys."""
        if self._managers is not None:
            raise NotImplementedError("a view of local keys has no mapping of its own")
        return DDictMappingProxy(self._ddict)

    def __len__(self) -> int:
        if self._managers is None:
            return len(self._ddict)
        return sum(shard.count(self._ddict.checkpoint_id) for shard in self._ddict._scope.local())

    def __reversed__(self) -> NoReturn:
        raise NotImplementedError("the keys of a distributed dictionary have no order")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def _keys(self) -> Iterator[Any]:
        return (self._ddict._codec.decoded(key) for _, key in self._ddict._scope.stored_keys(self._managers))

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        # A key that is deleted before it is read is left out.
        codec, scope = self._ddict._codec, self._ddict._scope
        found = scope.present(scope.stored_keys(self._managers))
        return ((codec.decoded(key), codec.loaded(value)) for key, value in found)


class DDictKeysView(_View, KeysView[K], Generic[K]):
    """A view of all keys.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(1, 1, 16 * 2**20) as ddict:
        ...     ddict.update({"a": 1, "b": 2})
        ...     sorted(ddict.keys()), ddict.keys() & {"a", "c"}
        (['a', 'b'], {'a'})
    """

    def __iter__(self) -> Iterator[K]:
        return self._keys()

    def __contains__(self, key: object) -> bool:
        ddict = self._ddict
        if self._managers is None:
            return key in ddict
        encoded, shards = ddict._codec.key(key), ddict._scope.open()
        return any(shards[manager].contains(encoded, ddict.checkpoint_id) for manager in self._managers)


class DDictValuesView(_View, ValuesView[V], Generic[V]):
    """A view of all values.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(1, 1, 16 * 2**20) as ddict:
        ...     ddict.update({"a": 1, "b": 2})
        ...     sum(ddict.values()), 3 in ddict.values()
        (3, False)
    """

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._pairs())

    def __contains__(self, value: object) -> bool:
        return any(value is found or equal(value, found) for found in self)


class DDictItemsView(_View, ItemsView[K, V], Generic[K, V]):
    """A view of all keys with their values.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(1, 1, 16 * 2**20) as ddict:
        ...     ddict.update({"a": 1, "b": 2})
        ...     sorted(ddict.items())
        [('a', 1), ('b', 2)]
    """

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._pairs()

    def __contains__(self, item: Any) -> bool:
        key, value = item
        return key in self._ddict and equal(self._ddict[key], value)


class _Sentinel:
    """The end mark after the last item, with the error that stopped the writer, or ""."""

    def __init__(self, error: str) -> None:
        self.error = error


class SentinelQueue:
    """A queue with one writer and one reader; the reader gets EOFError after the writer has closed it.

    Each process first declares its role, by putter() or getter(). A handle that is sent to another process has no role
    there.

    Args:
        maxsize: the number of items that the writer may be ahead; the next put() waits.

    Examples:
        >>> from dragon.data.ddict import SentinelQueue
        >>> from dragon.native import Process
        >>> def write(queue):
        ...     queue.putter()
        ...     queue.put("last")
        ...     queue.close()
        >>> queue = SentinelQueue()
        >>> Process(write, (queue,)).start()
        >>> queue.getter()
        >>> queue.get()  # the next get() raises EOFError
        'last'
    """

    def __init__(self, maxsize: int = 100) -> None:
        self.__setstate__(Channel(maxsize))

    def __getstate__(self) -> Channel:
        return self._channel

    def __setstate__(self, channel: Channel) -> None:
        self._channel, self._role = channel, ""
        self._ended: tuple[str, ...] | None = None  # the arguments of EOFError

    def putter(self) -> None:
        """Declare this handle the writer. Raises RuntimeError if it is the reader."""
        self._take("putter")

    def getter(self) -> None:
        """Declare this handle the reader. Raises RuntimeError if it is the writer."""
        self._take("getter")

    def put(self, item: object) -> None:
        """Add an item. Raises RuntimeError if putter() was not called before, and after close()."""
        self._check("putter", "put")
        if self._ended is not None:
            raise RuntimeError("put() on a SentinelQueue that was closed")
        self._channel.put(item)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next item.

        Raises EOFError after the last one, queue.Empty after `timeout` seconds without one, and RuntimeError if
        getter() was not called before.
        """
        self._check("getter", "get")
        if self._ended is None:
            item = self._channel.get(timeout=timeout)
            if not isinstance(item, _Sentinel):
                return item
            self._ended = (item.error,) if item.error else ()
        raise EOFError(*self._ended)

    def close(self, error: str = "") -> None:
        """End the queue for the reader, whose EOFError has `error` as its argument.

        Does nothing when the reader calls it, or the second time.
        """
        if self._role == "putter" and self._ended is None:
            self._ended = ()
            self._channel.put(_Sentinel(error))

    def _take(self, role: str) -> None:
        if self._role not in ("", role):
            raise RuntimeError(f"a handle of a SentinelQueue is {self._role} or {role}, not both")
        self._role = role

    def _check(self, role: str, call: str) -> None:
        if self._role != role:
            raise RuntimeError(f"{call}() on a SentinelQueue without {role}() before")


_AHEAD = 256  # items that a manager's function may be ahead of the consumer
_PROCESS_CHECK_S = 1.0  # seconds without an item after which the state of the process is checked


def _choose(
    ddict: Handle, code: Callable[..., Iterable[Any]], arguments: tuple[Any, ...], queue: SentinelQueue
) -> None:
    queue.putter()
    try:
        if _takes_queue(code, arguments):
            code(ddict, queue, *arguments)
        else:
            for item in code(ddict, *arguments):
                queue.put(item)
    except Exception as error:
        queue.close(f"{type(error).__name__}: {error}")
        raise
    queue.close()


def _takes_queue(code: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Return whether a function takes the queue into which it puts its items; a generator yields them instead."""
    try:
        signature = inspect.signature(code)
    except ValueError:
        return False  # a function written in C has no signature
    with_queue = _takes(signature, 2 + len(arguments))
    return with_queue and not (_takes(signature, 1 + len(arguments)) and inspect.isgeneratorfunction(code))


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


class FilterIterator(Iterator[V], Generic[V]):
    """An iterator over the items of all managers, merged.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(2, 1, 16 * 2**20) as ddict:
        ...     ddict.update({"a": 3, "b": 1, "c": 2})
        ...     with ddict.filter(lambda part: sorted(part.values()), (), lambda a, b: a < b) as found:
        ...         next(found), next(found)
        (1, 2)
    """

    def __init__(self, items: list[Iterator[V]], comparator: Callable[[V, V], Any]) -> None:
        key = functools.cmp_to_key(functools.partial(_compare, comparator))
        self._merged = heapq.merge(*items, key=key)

    def __next__(self) -> V:
        return next(self._merged)


def _compare(comparator: Callable[[Any, Any], Any], left: object, right: object) -> int:
    """Return the order of two items as functools.cmp_to_key takes it. A comparator may return such a number, or a
    bool."""
    answer = comparator(left, right)
    if not isinstance(answer, bool):
        return int(answer)
    return -1 if answer else int(bool(comparator(right, left)))


def _items(manager: int, process: Process, queue: SentinelQueue) -> Iterator[Any]:
    ended = None
    while True:
        try:
            yield queue.get(_PROCESS_CHECK_S)
        except EOFError as end:
            if end.args:
                raise DDictError(f"the function of a filter failed on manager {manager}: {end}", "FILTER") from None
            return
        except Empty:
            if ended is not None:  # the second check: all items that it had put were taken
                raise DDictError(
                    f"the process of a filter beside manager {manager} ended with exit code {ended}", "FILTER"
                ) from None
            ended = process.returncode


class FilterContextManager:
    """A context manager that starts a process beside each manager to choose items; its block iterates over them in
    order.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> def larger_than(ddict, least):
        ...     yield from sorted(value for value in ddict.values() if value > least)
        >>> with DDict(2, 1, 16 * 2**20) as ddict:
        ...     ddict.update({"a": 3, "b": 1, "c": 2})
        ...     with ddict.filter(larger_than, (1,), lambda a, b: a < b) as found:
        ...         list(found)
        [2, 3]
    """

    def __init__(
        self,
        ddict: Handle,
        code: Callable[..., Iterable[Any]],
        arguments: tuple[Any, ...],
        comparator: Callable[[Any, Any], Any],
    ) -> None:
        self._ddict, self._code, self._arguments, self._comparator = ddict, code, arguments, comparator
        self._processes: list[Process] = []

    def __enter__(self) -> FilterIterator:
        from dragon.native.process import Process

        items = []
        for shard in self._ddict._scope.open():
            queue = SentinelQueue(_AHEAD)
            queue.getter()
            node = node_at(shard.settings.node)
            policy = Policy(placement=Policy.Placement.HOST_ID, host_id=node.h_uid)
            mine = self._ddict.manager(shard.settings.manager)
            process = Process(_choose, (mine, self._code, self._arguments, queue), policy=policy, _kind="filter")
            process.start()
            self._processes.append(process)
            items.append(_items(shard.settings.manager, process, queue))
        return FilterIterator(items, self._comparator)

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
