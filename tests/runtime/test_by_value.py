"""Programs that other processes cannot import: their functions and classes share one module's globals in a process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from conftest import Site

Launch = Callable[[str], str]


def text_of(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


@pytest.fixture(params=["python", "dragon", "two nodes", "-c", "stdin"])
def launch(request: pytest.FixtureRequest, site: Site) -> Launch:
    def run(source: str) -> str:
        match request.param:
            case "python":
                return text_of(site.python(source))
            case "dragon":
                return text_of(site.dragon(site.write(source)))
            case "two nodes":
                return text_of(site.dragon("--nodes", "2", "--no-label", site.write(source)))
            case "-c":
                return text_of(site.run(sys.executable, "-c", textwrap.dedent(source)))
        with open(site.write(source)) as file:
            return text_of(site.run(sys.executable, "-", stdin=file))

    return run


def test_tasks_see_the_global_variables_that_an_initializer_sets(launch: Launch) -> None:
    printed = launch("""
        import multiprocessing as mp
        import dragon
        from concurrent.futures import ProcessPoolExecutor
        from dragon.native import Pool

        mp.set_start_method("dragon")
        model, table = None, {}

        def initialize(value):
            global model
            model = value
            table["key"] = value

        def task(_):
            return model, table["key"]

        with mp.Pool(1, initialize, ("loaded",)) as pool:
            print(pool.map(task, range(2)), pool.apply(lambda: model))
        with Pool(1, initialize, ("native",)) as pool:
            print(pool.map(task, range(2)))
        with ProcessPoolExecutor(1, mp_context=mp.get_context("dragon"), initializer=initialize, initargs=("e",)) as e:
            print(list(e.map(task, range(2))))
        print(model, table)
    """)
    assert printed == (
        "[('loaded', 'loaded'), ('loaded', 'loaded')] loaded\n"
        "[('native', 'native'), ('native', 'native')]\n"
        "[('e', 'e'), ('e', 'e')]\n"
        "None {}\n"
    )


def test_attributes_of_functions_and_classes_stay_as_a_process_sets_them(launch: Launch) -> None:
    printed = launch("""
        import multiprocessing as mp
        import dragon

        mp.set_start_method("dragon")

        class Config:
            rate = 1
            def double(self):
                return 2 * self.rate

        def counted(_):
            counted.calls = getattr(counted, "calls", 0) + 1
            return counted.calls

        def initialize():
            Config.rate = 5

        def task(config):
            return config.rate, Config.rate, config.double(), type(config) is Config

        with mp.Pool(1, initialize) as pool:
            print(pool.map(task, [Config(), Config()], 1))
            print(pool.map(counted, range(3), 1))
            same = pool.apply(lambda: (counted, Config))
        print(Config.rate, same[0] is counted, same[1] is Config, hasattr(counted, "calls"))
    """)
    assert printed == ("[(5, 5, 10, True), (5, 5, 10, True)]\n[1, 2, 3]\n1 True True False\n")


def test_changes_of_the_program_reach_running_processes(launch: Launch) -> None:
    printed = launch("""
        import multiprocessing as mp
        import dragon

        mp.set_start_method("dragon")
        number, settings, kept = 1, {"a": 1}, None

        class Holder:
            value = 1

        holder = Holder()

        def keep(value):
            global kept
            kept = value

        def task():
            return number, settings, holder.value, Holder.value, kept, helper()

        def helper():
            return "first"

        with mp.Pool(1) as pool:
            pool.apply(keep, ("here",))
            print(pool.apply(task))
            number, settings["a"], holder.value, Holder.value = 2, 2, 2, 3
            def helper():
                return "second"
            print(pool.apply(task))
    """)
    assert printed == "(1, {'a': 1}, 1, 1, 'here', 'first')\n(2, {'a': 2}, 2, 3, 'here', 'second')\n"


def test_objects_that_share_others_also_share_them_in_a_worker(launch: Launch) -> None:
    printed = launch("""
        import multiprocessing as mp
        import dragon

        mp.set_start_method("dragon")
        cache = {}

        class Api:
            def __init__(self, cache):
                self.cache = cache

        api = Api(cache)

        def task(n):
            api.cache[n] = n
            return len(cache)

        with mp.Pool(1) as pool:
            print([pool.apply(task, (n,)) for n in range(3)])
    """)
    assert printed == "[1, 2, 3]\n"


def test_imported_functions_share_globals_with_functions_sent_by_value(site: Site) -> None:
    printed = site.python("""
        import multiprocessing as mp
        import dragon

        model, settings = None, "default"

        def initialize(value):
            global model
            model = value

        def imported():
            return model, settings

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            settings = "from main"

            def here():
                return model, settings, imported()

            with mp.Pool(1, initialize, ("loaded",)) as pool:
                print(pool.apply(here))
                print(pool.apply(lambda: model))
            print(model)
    """)
    assert text_of(printed) == "('loaded', 'from main', ('loaded', 'from main'))\nloaded\nNone\n"


def test_a_queue_that_sent_functions_use_is_released(site: Site) -> None:
    printed = site.python("""
        import multiprocessing as mp
        import dragon
        from dragon import _core

        mp.set_start_method("dragon")
        queue = mp.Queue()

        def task(n):
            queue.put(n)

        with mp.Pool(1) as pool:
            pool.map(task, range(20), 1)
            for _ in range(20):
                queue.get()
        name = queue._name()
        del queue
        print(_core.exists(*name[:2]))
    """)
    assert text_of(printed) == "False\n"


def test_processes_that_run_the_same_program_have_separate_globals(site: Site) -> None:
    printed = site.dragon(
        "--no-label",
        site.write("""
        import sys
        from dragon.native.process import Process, ProcessTemplate
        from dragon.native.queue import Queue

        number = 0

        def child(queue, function):
            queue.put((function(), number))

        if __name__ == "__main__":
            if len(sys.argv) == 1:
                there, back = Queue(), Queue()
                for rank in (1, 2):
                    program = Process(sys.executable, [__file__, str(rank), there.serialize().hex()])
                    program.start()
                    program.join()
                    print(there.get()(), there.get()())
                back.put(lambda: number)
                print(back.get()())
            else:
                number = int(sys.argv[1])
                there = Queue.attach(bytes.fromhex(sys.argv[2]))
                there.put(lambda: number)
                def under_the_guard():
                    return 10 * number
                there.put(under_the_guard)
    """),
    )
    assert text_of(printed) == "1 10\n2 20\n0\n"


def test_a_function_returned_by_a_worker_uses_the_globals_of_the_caller(site: Site) -> None:
    printed = site.python("""
        import multiprocessing as mp
        import dragon

        state = {"n": 0}

        def make(n):
            state["n"] = n
            return lambda: state["n"]

        def call(function):
            return function()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(1) as first, mp.Pool(1) as second:
                made = first.apply(make, (7,))
                print(made(), second.apply(call, (made,)), state)
    """)
    assert text_of(printed) == "0 0 {'n': 0}\n"


def test_several_objects_of_one_statement_under_the_main_guard_are_sent(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        from collections import namedtuple
        import dragon

        def same(x):
            return x

        if __name__ == "__main__":
            A, B = namedtuple("A", "x"), namedtuple("B", "y")
            mp.set_start_method("dragon")
            with mp.Pool(1) as pool:
                print(pool.map(same, [A(1), B(2)]))
    """)
    assert (done.stdout, done.stderr) == ("[A(x=1), B(y=2)]\n", "")


def test_a_program_whose_docstring_quotes_the_main_guard_does_not_run_again(site: Site) -> None:
    done = site.python('''
        """Without the line

        if __name__ == "__main__":

        this runs too.
        """
        import multiprocessing as mp
        import dragon

        print("once", flush=True)
        mp.set_start_method("dragon")
        process = mp.Process(target=print, args=("there",))
        process.start()
        process.join()
    ''')
    assert (done.stdout, done.stderr) == ("once\nthere\n", "")
