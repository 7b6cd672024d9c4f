"""loguru: one file that all processes write to through a queue, given to them as its guide says."""

import multiprocessing as mp
from pathlib import Path

from loguru import logger

import dragon  # noqa: F401

given = None


def set_logger(theirs):
    global given
    given = theirs


def work(number):
    given.info("task {}", number)
    return number


def child(theirs, number):
    theirs.bind(child=number).info("child {}", number)
    theirs.complete()


if __name__ == "__main__":
    mp.set_start_method("dragon")
    logger.remove()
    logger.add("all.log", enqueue=True, format="{process.id} {message}")
    logger.info("main")
    with mp.Pool(2, initializer=set_logger, initargs=(logger,)) as pool:
        assert pool.map(work, range(20)) == list(range(20))
        pool.close()
        pool.join()
    children = [mp.Process(target=child, args=(logger, number)) for number in range(2)]
    for process in children:
        process.start()
    for process in children:
        process.join()
    logger.complete()
    lines = [line.split(" ", 1) for line in Path("all.log").read_text().splitlines()]
    assert sorted(text for _, text in lines) == sorted(
        ["main", "child 0", "child 1", *(f"task {n}" for n in range(20))]
    )
    assert len({pid for pid, _ in lines}) >= 4
    print("file done")
    logger.remove()
    logger.add("named.log", enqueue=True, context="dragon", format="{message}")
    logger.info("with a context of its own")
    logger.remove()
    assert Path("named.log").read_text() == "with a context of its own\n"
    print("context done")
