"""concurrent.futures' process pool with our context: results, errors, an initializer, a killed worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import pytest

import dragon  # noqa: F401 - makes "dragon" a start method

_base = 0


def set_base(base: int) -> None:
    global _base
    _base = base


def add(number: int) -> int:
    return _base + number


def fail(text: str) -> None:
    raise LookupError(text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    context = multiprocessing.get_context("dragon")
    with ProcessPoolExecutor(2, mp_context=context, initializer=set_base, initargs=(100,)) as executor:
        assert list(executor.map(add, range(20), chunksize=3)) == list(range(100, 120))
        futures = {executor.submit(add, number): number for number in range(10)}
        assert all(future.result() == 100 + futures[future] for future in as_completed(futures))
        error = executor.submit(fail, "not here").exception()
        assert isinstance(error, LookupError)
        assert error.args == ("not here",)
        assert len(executor.submit(bytes, 3_000_000).result()) == 3_000_000
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        assert isinstance(executor.submit(die).exception(), BrokenProcessPool)
        with pytest.raises(BrokenProcessPool):
            executor.submit(add, 1)
    print("ok")


if __name__ == "__main__":
    main()
