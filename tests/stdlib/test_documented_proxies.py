"""What the standard library's documentation promises of proxies.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator
from multiprocessing.managers import BaseProxy
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


def test_a_proxy_looks_like_its_referent_to_str_alone(manager: Any) -> None:
    """Notice that applying str() to a proxy will return the representation of the referent, whereas applying
    repr() will return the representation of the proxy."""
    squares = manager.list([i * i for i in range(4)])
    assert str(squares) == "[0, 1, 4, 9]"
    assert repr(squares).startswith("<ListProxy object, typeid 'list' at 0x")


def test_proxies_are_not_compared_by_value(manager: Any) -> None:
    """The proxy types in multiprocessing do nothing to support comparisons by value."""
    assert manager.list([1, 2]) != [1, 2]
    assert manager.list([1, 2])[:] == [1, 2]


def test_a_method_is_called_by_name_and_the_referent_copied(manager: Any) -> None:
    """_callmethod(methodname[, args[, kwds]]): call and return the result of a method of the proxy's referent. An
    exception is reraised by it. _getvalue(): return a copy of the referent."""
    numbers = manager.list(range(5))
    assert numbers._callmethod("__getitem__", (slice(1, 3),)) == [1, 2]
    with pytest.raises(IndexError, match="list index out of range"):
        numbers._callmethod("__getitem__", (20,))
    assert numbers._getvalue() == [0, 1, 2, 3, 4]
    assert isinstance(numbers, BaseProxy)


def append(numbers: Any, nested: Any) -> None:
    numbers.append(os.getpid())
    nested[0].append("from a process")


def test_proxies_are_handed_to_processes_and_contain_each_other(manager: Any) -> None:
    """An important feature of proxy objects is that they are picklable so they can be passed between processes. As
    such, a referent can contain proxy objects. This permits nesting of these managed lists, dicts, and other proxy
    objects."""
    numbers, nested = manager.list(), manager.list([manager.list()])
    process = CONTEXT.Process(target=append, args=(numbers, nested))
    process.start()
    process.join(LONG)
    assert (list(numbers), list(nested[0])) == ([process.pid], ["from a process"])


def test_the_methods_of_lists_and_dictionaries(manager: Any) -> None:
    """list(), list(sequence): create a shared list object and return a proxy for it. dict(), dict(mapping),
    dict(sequence): create a shared dict object and return a proxy for it."""
    numbers = manager.list([3, 1, 2])
    numbers.sort()
    numbers.extend([5])
    numbers *= 2
    numbers += [9]
    assert (list(numbers), 9 in numbers, numbers.pop(), numbers.index(5), len(numbers)) == (
        [1, 2, 3, 5, 1, 2, 3, 5, 9],
        True,
        9,
        3,
        8,
    )
    names = manager.dict([("a", 1)])
    names.update(b=2)
    assert (names.pop("a"), names.setdefault("c", 3), dict(names), sorted(names.keys()), "b" in names) == (
        1,
        3,
        {"b": 2, "c": 3},
        ["b", "c"],
        True,
    )


def test_proxies_nest_and_changes_of_mutable_values_are_not_seen() -> None:
    """If standard (non-proxy) list or dict objects are contained in a referent, modifications to those mutable values
    will not be propagated through the manager. A shared object can contain multiple shared objects."""
    with CONTEXT.Manager() as manager:
        inner = manager.list([1])
        outer = manager.dict(inner=inner, plain=[1])
        outer["inner"].append(2)
        outer["plain"].append(2)
        assert (list(outer["inner"]), outer["plain"]) == ([1, 2], [1])
        assert repr(manager.list([1])).startswith("<ListProxy")
        assert str(manager.list([1])) == "[1]"
