"""Objects that cannot be sent to another process: the error names the object and says what to do."""

from __future__ import annotations

import multiprocessing as mp
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dragon  # noqa: F401
from conftest import Site
from dragon.native import Pool, Queue
from dragon.native.process import Process

CONTEXT: Any = mp.get_context("dragon")


class Job:
    def __init__(self, log: Any) -> None:
        self.number, self.log = 1, log


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


def numbers() -> Iterator[int]:
    yield 1


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Any]:
    with open(tmp_path / "job.log", "w+") as file:
        yield file


WAYS: dict[str, Callable[[Any], Any]] = {
    "process": lambda value: CONTEXT.Process(target=nothing, args=(1, value)).start(),
    "native process": lambda value: Process(nothing, (1, value)).start(),
    "queue": lambda value: CONTEXT.Queue().put([1, value]),
    "native queue": lambda value: Queue().put([1, value]),
    "pipe": lambda value: CONTEXT.Pipe()[0].send([1, value]),
}
KINDS: dict[str, Callable[[Any], Any]] = {
    "file": lambda file: file,
    "lock": lambda file: threading.Lock(),
    "generator": lambda file: numbers(),
    "attribute": Job,
    "in a dictionary": lambda file: {"log": file},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_names_an_object_that_cannot_be_sent(way: str, kind: str, file: Any) -> None:
    with pytest.raises(TypeError) as caught:
        WAYS[way](KINDS[kind](file))
    text = str(caught.value)
    assert ("args[1]" if "process" in way else "element 1") in text
    assert {"attribute": ".log ", "in a dictionary": "['log'] "}.get(kind, "") in text
    assert "cannot be sent to another process" in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_error_of_a_pool_names_an_argument_that_cannot_be_sent(file: Any) -> None:
    for make in (CONTEXT.Pool, Pool):
        with make(1) as pool:
            with pytest.raises(TypeError, match=r"^args\[0\]\.log cannot be sent"):
                pool.apply(nothing, (Job(file),))
            with pytest.raises(TypeError, match=r"^kwargs\['key'\] cannot be sent"):
                pool.apply(nothing, (), {"key": file})
            with pytest.raises(TypeError, match=r"^elements\[1\] cannot be sent"):
                pool.map(nothing, [1, file], 2)
            with pytest.raises(TypeError, match=r"the variable file that <lambda>\(\) uses cannot be sent"):
                pool.apply(lambda: file)
            assert pool.apply(abs, (-1,)) == 1


def test_an_argument_that_cannot_be_sent_is_an_error_of_its_task_in_an_executor(file: Any) -> None:
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as executor:
        with pytest.raises(TypeError, match="cannot pickle"):
            executor.submit(nothing, Job(file)).result(30)
        assert executor.submit(abs, -1).result(30) == 1


def test_a_result_that_cannot_be_sent_is_an_error_of_its_task() -> None:
    with CONTEXT.Pool(1) as pool, pytest.raises(mp.pool.MaybeEncodingError, match="generator"):
        pool.apply(numbers)


def test_standard_streams_are_those_of_the_process(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp, sys
        import dragon

        def same(stream):
            return stream is sys.stdout

        mp.set_start_method("dragon")
        with mp.Pool(1) as pool:
            print(pool.apply(same, (sys.stdout,)))
    """)
    assert (done.stdout, done.stderr) == ("True\n", "")
