"""A limit of the address space (ulimit -v, RLIMIT_AS) counts the memory that a program uses, not the whole arena."""

from __future__ import annotations

import sys

import pytest

from conftest import Site

_WAYS = [[sys.executable], [sys.executable, "-m", "dragon", "--nodes", "2"]]
_USE = """
        import multiprocessing as mp
        import resource
        import dragon
        from dragon.data.ddict import DDict

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

        def use(mebibytes):
            return len(bytearray(mebibytes << 20)) >> 20

        def make(mebibytes):
            return bytes(mebibytes << 20)

        def use_objects(queue):
            with mp.Lock():
                for size in (1, 100, 10_000, 1 << 20, 20 << 20):
                    queue.put(bytes(size))
            return [len(queue.get()) for _ in range(5)] == [1, 100, 10_000, 1 << 20, 20 << 20]

        def use_all(pool):
            print(pool.apply(use, (100,)), [len(made) >> 20 for made in pool.map(make, [1, 30, 1, 30, 1, 30])])
            try:
                print(pool.apply(use, (4000,)))
            except MemoryError:
                print("MemoryError")
            print(pool.apply(use_objects, (queue,)))
"""
_SAID = ["100 [1, 30, 1, 30, 1, 30]", "MemoryError", "True"]


@pytest.mark.parametrize(("way", "when"), [(_WAYS[0], "initializer=limit"), (_WAYS[1], "")], ids=["python", "nodes"])
def test_processes_that_set_a_limit_can_use_all_memory_within_it(site: Site, when: str, way: list[str]) -> None:
    program = site.write(f"""
        {_USE}
        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            if not {when!r}:
                limit()
            with mp.Pool(2, {when}) as pool:
                use_all(pool)
            print(use_objects(queue))
    """)
    assert site.run(*way, program).stdout.splitlines() == [*_SAID, "True"]


@pytest.mark.parametrize(("way", "kibibytes"), [(_WAYS[0], 1_500_000), (_WAYS[1], 4_000_000)], ids=["python", "nodes"])
def test_a_run_starts_under_a_limit_and_an_error_names_the_exceeded_limit(
    site: Site, kibibytes: int, way: list[str]
) -> None:
    program = site.write(f"""
        {_USE}
        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            with mp.Pool(2) as pool:
                use_all(pool)
            ddict = DDict(1, 1, 64 << 20)
            ddict["key"] = bytes(10 << 20)
            print(len(ddict["key"]))
            ddict.destroy()
            array = mp.RawArray("b", 100 << 20)
            try:
                mp.RawArray("b", 4 << 30)
            except MemoryError as error:
                print(error)
    """)
    done = site.run("sh", "-c", f'ulimit -v {kibibytes}; exec "$@"', "sh", *way, program)
    assert done.stdout.splitlines()[:4] == [*_SAID, str(10 << 20)], done.stderr
    assert "ulimit -v" in done.stdout.splitlines()[4] or "DRAGON_ARENA_SIZE" in done.stdout.splitlines()[4]


def test_a_process_with_a_limit_maps_messages_when_it_receives_them(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import resource
        import dragon

        def work(asked, answers):
            resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))  # now what is not in use is not mapped
            with open("/proc/self/statm") as file:
                mapped = int(file.read().split()[0]) * resource.getpagesize()
            limit = mapped + (960 << 20)  # free-threaded Python's allocator alone maps ranges of 1 GiB
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            answers.put("limited")
            while (size := asked.get()) is not None:
                answers.put(len(size))

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            asked, answers = mp.Queue(), mp.Queue()
            process = mp.Process(target=work, args=(asked, answers))
            process.start()
            answers.get()
            sizes = [1 << n for n in range(26)] * 2
            kept = [mp.Value("i") for _ in range(20_000)]  # objects that the other one has not mapped
            for size in sizes:
                asked.put(bytes(size))
            asked.put(None)
            print([answers.get() for _ in sizes] == sizes)
            process.join()
            print(process.exitcode)
    """)
    assert (done.stdout.split(), done.stderr) == (["True", "0"], "")
