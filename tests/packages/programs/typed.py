"""A program whose types a type checker keeps; test_metadata.py has mypy check it."""

from collections.abc import Iterator
from typing import assert_type

from dragon import DDict
from dragon.native import Pool, Queue
from torchloader import ElasticDataLoader


def square(x: int) -> float:
    return x * 0.5


def mean(samples: list[int]) -> float:
    return sum(samples) / len(samples)


def use(values: DDict[str, int], messages: Queue[str]) -> None:
    assert_type(values["a"], int)
    assert_type(values.get("a"), int | None)
    assert_type(values.get("a", 0), int)
    assert_type(values.pop("a"), int)
    assert_type(list(values), list[str])
    assert_type(list(values.items()), list[tuple[str, int]])
    assert_type(values.get_many(["a"]), list[int])
    messages.put("text")
    assert_type(messages.get(), str)
    with Pool(2) as pool:
        assert_type(pool.map(square, [1, 2]), list[float])
        assert_type(pool.map_async(square, [1]).get(), list[float])
        assert_type(pool.apply_async(square, (1,)).get(), float)
        assert_type(pool.apply(square, (1,)), float)
        assert_type(pool.imap(square, [1]), Iterator[float])
        assert_type(pool.starmap(square, [(1,)]), list[float])
    plain = Queue(10)
    plain.put(1)
    assert_type(Queue[int](10).get(), int)
    use(DDict(1, 1, "64M"), Queue())
    untyped = DDict(1, 1)
    untyped["a"] = 1
    values[1] = 2  # type: ignore[index]
    messages.put(1)  # type: ignore[arg-type]
    loader: ElasticDataLoader[list[int]] = ElasticDataLoader([1, 2, 3], batch_size=2)
    for batch in loader:
        assert_type(batch, list[int])
    for value in ElasticDataLoader([1, 2, 3], batch_size=2, collate_fn=mean):
        assert_type(value, float)
