"""The runtime starts automatically in every kind of Python program."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conftest import Site

INTERACTIVE = """
import multiprocessing as mp, dragon
mp.set_start_method("dragon")
def square(x):
    return x * x

with mp.Pool(2) as pool:
    print(pool.map(square, range(4)), pool.map(lambda x: -x, range(3)))

from dragon.native import Process, Queue
queue = Queue()
def put(x):
    queue.put(square(x))

process = Process(put, (5,)); process.start()
print(queue.get(timeout=30), process.join())
exit()
"""


@pytest.mark.parametrize("options", [["-"], ["-i", "-q"]], ids=["stdin", "REPL"])
def test_workers_find_functions_of_stdin_and_of_the_interactive_interpreter(site: Site, options: list[str]) -> None:
    process = site.start(sys.executable, *options, stdin=-1)
    out, err = process.communicate(INTERACTIVE, timeout=60)
    assert "[0, 1, 4, 9] [0, -1, -2]" in out, err
    assert "25 0" in out, err


def test_workers_find_objects_that_are_defined_only_in_the_main_program(site: Site) -> None:
    program = site.write(
        """
        import ctypes
        import multiprocessing as mp
        import dragon
        from dragon.native import Queue, Value

        class Point(ctypes.Structure):
            _fields_ = [("x", ctypes.c_double)]

        def step():
            return "before"

        def tell(queue, point):
            queue.put(type(point._memory.data) is Point)

        if __name__ == "__main__":
            mp.set_start_method("dragon")

            class Box:
                def __init__(self, value):
                    self.value = value

            class Named(Queue):
                pass

            def step():
                return "after"

            def work(x):
                return Box(x).value * 2, step()

            with mp.Pool(1) as pool:
                print(pool.map(work, [1, 2]))
            queue = Named()
            # A lambda goes by value, and what can be imported beside it all the same by its name.
            process = mp.Process(target=lambda queue, point: tell(queue, point), args=(queue, Value(Point, (1.5,))))
            process.start()
            print(queue.get(timeout=30), process.join())
        """
    )
    done = site.dragon("-s", program)
    assert (done.returncode, done.stdout) == (0, "[(2, 'after'), (4, 'after')]\nTrue None\n"), done.stderr


def test_workers_find_functions_of_a_program_given_with_c(site: Site) -> None:
    source = INTERACTIVE.replace("exit()", "")
    done = site.run(sys.executable, "-c", source)
    assert done.stdout == "[0, 1, 4, 9] [0, -1, -2]\n25 0\n", done.stderr


@pytest.mark.parametrize(
    "start", ["", "import logging; log = logging.getLogger(__name__)  # not __name__ == '__main__'"]
)
def test_a_script_without_a_main_guard_works(site: Site, start: str) -> None:
    done = site.python(start + INTERACTIVE.replace("exit()", ""))
    assert done.stdout == "[0, 1, 4, 9] [0, -1, -2]\n25 0\n", done.stderr


def test_a_start_method_may_be_chosen_above_the_main_guard(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon

        mp.set_start_method("dragon")

        def tell(_):
            return mp.get_start_method()

        if __name__ == "__main__":
            with mp.Pool(1) as pool:
                print(pool.map(tell, [1]))
    """)
    assert (done.stdout, done.stderr) == ("['dragon']\n", "")


def test_a_pool_above_the_main_guard_is_an_error_that_names_the_main_guard(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon

        mp.set_start_method("dragon")
        pool = mp.Pool(1)
        if __name__ == "__main__":
            pool.map(abs, [1])
    """)
    assert done.returncode == 1
    assert "you have forgotten to use the proper idiom" in done.stderr
    assert "already been set" not in done.stderr


@pytest.mark.parametrize("command", [(), ("-m", "dragon")], ids=["python", "dragon"])
@pytest.mark.parametrize("arguments", [("-m", "pack"), ("pack",)], ids=["package", "folder"])
def test_workers_find_objects_of_the_main_file_of_a_package_or_folder(
    site: Site, command: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    (site.folder / "pack").mkdir()
    site.write(
        """
        import multiprocessing as mp
        import dragon

        class Point:
            def __init__(self, x):
                self.x = x

        def moved(point):
            return Point(point.x + 1)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(2) as pool:
                points = pool.map(moved, [Point(x) for x in range(4)])
                print([point.x for point in points], isinstance(points[0], Point))
        """,
        "pack/__main__.py",
    )
    done = site.run(sys.executable, *command, *arguments)
    assert done.stdout == "[1, 2, 3, 4] True\n", done.stderr


@pytest.mark.parametrize(
    "command",
    [("pdb", "-c", "continue", "-c", "quit"), ("cProfile", "-o", "profile"), ("trace", "--count", "-C", "counts")],
    ids=["pdb", "cProfile", "trace"],
)
def test_a_program_runs_under_a_debugger_and_a_profiler(site: Site, command: tuple[str, ...]) -> None:
    program = site.write("""
        import multiprocessing as mp
        import dragon

        def square(x):
            return x * x

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(2) as pool:
                print(pool.map(square, range(4)), flush=True)
    """)
    done = site.run(sys.executable, "-m", *command, program, stdin=subprocess.DEVNULL)
    assert "[0, 1, 4, 9]" in done.stdout, done.stdout + done.stderr


def test_an_executor_of_the_standard_library_runs_lambdas_and_functions_of_the_main_program(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        from concurrent.futures import ProcessPoolExecutor
        import dragon

        class Point:
            def __init__(self, x):
                self.x = x

        def moved(point):
            return Point(point.x + 1)

        with ProcessPoolExecutor(2, mp_context=mp.get_context("dragon")) as executor:
            points = list(executor.map(moved, [Point(1), Point(2)]))
            print([point.x for point in points], isinstance(points[0], Point))
            print(executor.submit(lambda: 5).result())
    """)
    assert done.stdout == "[2, 3] True\n5\n", done.stderr


def test_a_notebook_runs_functions_of_its_cells(site: Site) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [
        "import multiprocessing as mp, dragon\nmp.set_start_method('dragon')",
        "def square(x):\n    return x * x",
        "with mp.Pool(2) as pool:\n    result = pool.map(square, range(4))\nresult",
        "q = mp.Queue()\np = mp.Process(target=lambda: q.put(square(6)))\np.start()\np.join()\nq.get()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    path = site.folder / "notebook.ipynb"
    nbformat.write(notebook, path)
    runner = site.write(
        f"""
        import nbformat, nbclient
        notebook = nbformat.read({str(path)!r}, 4)
        nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
        print([cell.outputs[0]["data"]["text/plain"] for cell in notebook.cells[2:]])
        """,
        "run_notebook.py",
    )
    environment = {"IPYTHONDIR": str(site.folder / "i"), "JUPYTER_RUNTIME_DIR": str(site.folder / "j")}
    done = site.run(sys.executable, runner, env=environment, timeout=120)
    assert done.stdout == "['[0, 1, 4, 9]', '36']\n", done.stderr
    assert nbclient


def test_two_workers_of_pytest_use_the_runtime_at_the_same_time(site: Site) -> None:
    pytest.importorskip("xdist")
    site.write(
        """
        import multiprocessing as mp
        import dragon, pytest

        def square(x):
            return x * x

        @pytest.mark.parametrize("number", range(4))
        def test_pool(number):
            with mp.get_context("dragon").Pool(2) as pool:
                assert pool.map(square, range(number)) == [x * x for x in range(number)]
        """,
        "test_inner.py",
    )
    done = site.run(
        sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_inner.py", timeout=120
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_importing_starts_no_run_and_no_thread(site: Site) -> None:
    done = site.python(
        """
        import os, threading
        import dragon, dragon.native
        print(threading.active_count(), len(os.listdir("/proc/self/task")), dragon.in_dragon())
        """
    )
    assert done.stdout == "1 1 False\n", done.stderr
    assert not (site.folder / "r" / f"dragon-{os.getuid()}").exists()


def test_the_end_of_a_forked_child_does_not_end_the_run(site: Site) -> None:
    done = site.python(
        """
        import os
        from dragon.native import Queue
        queue = Queue()
        if os.fork() == 0:
            queue.put("from the child")
            raise SystemExit
        print(queue.get(timeout=30))
        os.wait()
        queue.put("the run lives")
        print(queue.get(timeout=30))
        """
    )
    assert done.stdout == "from the child\nthe run lives\n", done.stderr


def test_an_executable_started_by_a_program_joins_its_run(site: Site) -> None:
    inner = site.write(
        """
        import sys
        from dragon.native import Queue
        Queue.attach(sys.argv[1].encode()).put("from an executable")
        """,
        "inner.py",
    )
    done = site.python(
        f"""
        import sys
        from dragon.native import Process, Queue
        queue = Queue()
        process = Process(sys.executable, [{str(inner)!r}, queue.serialize().decode()])
        process.start()
        print(queue.get(timeout=30), process.join())
        """
    )
    assert done.stdout == "from an executable 0\n", done.stderr


def test_objects_remain_after_the_end_of_a_program_started_by_their_owner(site: Site) -> None:
    program = site.write("""
        import subprocess, sys
        from dragon.native import Queue

        queue = Queue()
        queue.put("still there")
        subprocess.run([sys.executable, "-c", "from dragon.native import Queue; Queue().put(1)"], check=True)
        print(queue.get())
    """)
    done = site.dragon(program)
    assert (done.stdout, done.stderr) == ("still there\n", "")


def test_an_environment_variable_selects_the_start_method(site: Site) -> None:
    source = "import multiprocessing as mp, dragon; print(mp.get_start_method(), mp.Queue.__module__)"
    assert site.python(source, env={"DRAGON_PATCH_MP": "1"}).stdout.split()[0] == "dragon"
    without = site.python("import multiprocessing as mp; print(mp.get_start_method())")
    assert site.python(source).stdout.split()[0] == without.stdout.strip()
