"""The resources of ended processes are released: memory does not grow with the duration of a run."""

from __future__ import annotations

import pytest

from conftest import Site

PROGRAM = """
    import multiprocessing as mp
    import dragon
    from dragon import _core
    from dragon.data.ddict import DDict

    def write(dictionary, key):
        dictionary[key] = bytes(1000)
        assert dictionary.pop(key) == bytes(1000)

    def use(dictionary, lock, queue, key):
        with lock:
            queue.put(key)
            assert queue.get() == key
        write(dictionary, key)

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        dictionary = DDict(1, 2, 2**27, replicas={replicas})
        lock, queue = mp.Lock(), mp.Queue()
        blocks = []
        for part in range(4):
            for number in range(20):
                process = mp.Process(target=use, args=(dictionary, lock, queue, f"{{part}}-{{number}}"))
                process.start()
                process.join()
                assert process.exitcode == 0
            blocks.append(_core.usage()["blocks"])
        print(max(blocks[1:]) - blocks[0])
        dictionary.destroy()
"""


@pytest.mark.parametrize("replicas", [1, 2])
def test_processes_that_used_objects_leave_no_blocks_of_memory(site: Site, replicas: int) -> None:
    done = site.dragon("--nodes", "2", site.write(PROGRAM.format(replicas=replicas)), timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 5
