"""multiprocessing.shared_memory: it is there until it is unlinked, whoever attached to it and ended."""

from __future__ import annotations

import sys

import pytest

import dragon  # noqa: F401 - makes "dragon" a start method
from conftest import Site


@pytest.fixture
def program(site: Site) -> str:
    source = """
        import multiprocessing as mp
        from multiprocessing.shared_memory import SharedMemory
        import dragon

        def add(name):
            block = SharedMemory(name)
            block.buf[0] += 1
            block.close()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(2) as pool:
                block = SharedMemory(create=True, size=10)
                pool.map(add, [block.name])
                pool.close()
                pool.join()
            for _ in range(3):
                process = mp.Process(target=add, args=(block.name,))
                process.start()
                process.join()
            print(block.buf[0])
            block.close()
            block.unlink()
    """
    return str(site.write(source))


def test_it_outlasts_workers_that_were_there_before_it(site: Site, program: str) -> None:
    done = site.run(sys.executable, program)
    assert (done.stdout, done.stderr) == ("4\n", "")


def test_it_outlasts_processes_of_other_simulated_nodes(site: Site, program: str) -> None:
    done = site.dragon("--nodes", "2", program)
    assert (done.stdout, done.stderr) == ("4\n", "")
