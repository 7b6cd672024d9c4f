"""Other start methods work beside "dragon", also where "dragon" is the default: libraries request them by name."""

from __future__ import annotations

import multiprocessing
from typing import Any

import dragon  # noqa: F401 - makes "dragon" a start method


def answer(connection: Any) -> None:
    connection.send(multiprocessing.get_start_method())


def main() -> None:
    multiprocessing.set_start_method("dragon")
    for method in ("dragon", "fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        process = context.Process(target=answer, args=(theirs,))
        process.start()
        theirs.close()
        assert ours.recv() == method
        process.join()
        assert process.exitcode == 0
        with context.Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
    print("ok")


if __name__ == "__main__":
    main()
