"""The changes to the standard library that importing the package makes."""

from __future__ import annotations

import pytest

from conftest import Site


def test_importing_dragon_adds_a_start_method_and_changes_nothing_else(site: Site) -> None:
    done = site.python("""
        import sys, types, typing  # from Python 3.12 on it tells pickle of types of its own
        import concurrent.futures, multiprocessing as mp
        from multiprocessing import connection, heap, managers, pool, queues, reduction, resource_tracker
        from multiprocessing import shared_memory, sharedctypes, spawn, synchronize, util

        PACKAGES = ("concurrent", "ctypes", "multiprocessing", "os", "pickle", "signal", "socket", "threading")

        def all_there():
            found = {}
            for module in [m for name, m in sys.modules.items() if name.split(".")[0] in PACKAGES]:
                for name, value in list(vars(module).items()):
                    found[module.__name__, name] = [id(value), id(getattr(value, "__code__", 0))]
                    if isinstance(value, type) and value.__module__ == module.__name__:
                        for key, each in list(vars(value).items()):
                            found[module.__name__, name, key] = [id(each), id(getattr(each, "__code__", 0))]
                    elif isinstance(value, dict) and not name.startswith("__"):
                        found[module.__name__, name, "keys"] = sorted(map(repr, value))
            return found

        before = all_there()
        import dragon
        after = all_there()
        for name in before:
            if after[name] != before[name]:
                print(*name)
        print("dragon" in mp.get_all_start_methods(), mp.get_start_method(allow_none=True))
    """)
    assert sorted(done.stdout.splitlines()) == [
        "True None",
        "multiprocessing get_all_start_methods",
        "multiprocessing.context DefaultContext get_all_start_methods",
        "multiprocessing.context _concrete_contexts keys",
    ], done.stderr


def test_modules_of_multiprocessing_are_available_after_import_dragon(site: Site) -> None:
    done = site.python("""
        import pickle, sys
        import multiprocessing as mp
        import dragon
        from multiprocessing import pool

        assert not {"multiprocessing.queues", "multiprocessing.pool", "multiprocessing.managers"} & set(sys.modules)

        def annotated(queue: mp.queues.Queue, manager: mp.managers.SyncManager): pass

        print(*(kind.__name__ for kind in annotated.__annotations__.values()))
        assert pickle.loads(pickle.dumps(pool)) is mp.pool
        assert pool.Pool is mp.pool.Pool is sys.modules["multiprocessing.pool"].Pool
    """)
    assert (done.stdout, done.stderr) == ("Queue SyncManager\n", "")


def test_the_agent_of_a_short_program_loads_nothing_that_serves_requests(site: Site) -> None:
    for _ in range(10):
        result = site.python(
            """
            import time
            begun = time.monotonic()
            import multiprocessing as mp
            from pathlib import Path
            import dragon
            from dragon.runtime.run import this_run

            if __name__ == "__main__":
                mp.set_start_method("dragon")
                with mp.Pool(2) as pool:
                    assert pool.map(abs, range(4)) == [0, 1, 2, 3]
                loaded = "uvloop" in Path(f"/proc/{this_run().agent.pid}/maps").read_text()
                print("late" if time.monotonic() - begun > 0.5 else loaded)
            """
        )
        assert result.stderr == ""
        if result.stdout != "late\n":
            assert result.stdout == "False\n"
            return
    pytest.skip("the machine is too busy for a short program")
