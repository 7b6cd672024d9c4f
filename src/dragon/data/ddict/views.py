"""The views that keys(), values() and items() of a dictionary return."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic

from dragon.data.ddict.handle import Handle, equal
from dragon.infrastructure.generic import K, V


class DDictMappingProxy:
    """A read-only view of a dictionary.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(1, 1, 16 * 2**20) as ddict:
        ...     ddict["a"] = 1
        ...     ddict.keys().mapping["a"]
        1
    """

    def __init__(self, ddict: Mapping[Any, Any]) -> None:
        self._ddict = ddict

    def __contains__(self, key: object) -> bool:
        return key in self._ddict

    def __getitem__(self, key: object) -> Any:
        return self._ddict[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ddict)

    def __len__(self) -> int:
        return len(self._ddict)

    def get(self, key: object, default: object = None) -> Any:
        """Return the value of a key, or `default`."""
        return self._ddict.get(key, default)

    def keys(self) -> KeysView[Any]:
        """Return a view of all keys."""
        return self._ddict.keys()

    def values(self) -> ValuesView[Any]:
        """Return a view of all values."""
        return self._ddict.values()

    def items(self) -> ItemsView[Any, Any]:
        """Return a view of all keys with their values."""
        return self._ddict.items()

    def copy(self) -> dict[Any, Any]:
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

    def __reversed__(self) -> Any:
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
