"""executorlib: functions with resources, of tasks that depend on each other, in workers that stay and in new ones."""

from executorlib import SingleNodeExecutor

import dragon  # noqa: F401


def add(a, b):
    return a + b


def fail():
    raise ValueError("on purpose")


if __name__ == "__main__":
    for block_allocation in (False, True):
        with SingleNodeExecutor(max_workers=2, block_allocation=block_allocation) as executor:
            futures = [executor.submit(add, n, b=1) for n in range(6)]
            assert [future.result() for future in futures] == list(range(1, 7))
            chained = executor.submit(add, futures[0].result(), futures[1].result())
            assert chained.result() == 3
        print("blocks done" if block_allocation else "single done")
    with SingleNodeExecutor(max_workers=2) as executor:
        first = executor.submit(add, 1, 2)
        assert executor.submit(add, first, 4).result() == 7
        assert isinstance(executor.submit(fail).exception(), ValueError)
    print("dependencies done")
