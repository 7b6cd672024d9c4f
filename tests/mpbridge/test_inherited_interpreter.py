"""Interpreter options and variables that Python reads at its start also apply to the processes of a program."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest

from conftest import Site

_PROGRAM = """
import multiprocessing as mp, os, sys, time, warnings
from concurrent.futures import ProcessPoolExecutor
import dragon
from dragon.native.pool import Pool
from dragon.native.process import Process
from dragon.native.process_group import ProcessGroup
from dragon.native.process import ProcessTemplate
from dragon.native.queue import Queue

def look(_=None):
    flags = [getattr(sys.flags, name) for name in ("optimize", "dev_mode", "utf8_mode", "bytes_warning", "isolated")]
    try:
        warnings.warn("one")
        warned = False
    except UserWarning:
        warned = True
    limit = sys.get_int_max_str_digits()
    return str((flags, sys.dont_write_bytecode, "tracemalloc" in sys._xoptions, warned, limit, __debug__))

def tell(queue):
    queue.put(look())

if __name__ == "__main__":
    mp.set_start_method("dragon")
    queue = Queue()
    group = ProcessGroup()
    group.add_process(1, ProcessTemplate(tell, (queue,)))
    group.init()
    group.start()
    with mp.Pool(1) as pool, Pool(1) as native, ProcessPoolExecutor(1) as executor:
        found = {look(), pool.apply(look), native.apply(look), *executor.map(look, [0]), queue.get()}
    group.join()
    group.close()
    print(*found, sep="\\n")
"""

_UTF8 = "utf8" if sys.version_info < (3, 15) else "utf8=0"  # what is not the default


OPTIONS = [
    ["-O", "-B", "-W", "error::UserWarning", "-X", _UTF8, "-X", "tracemalloc"],
    ["-OO", "-b", "-X", "dev", "-X", "int_max_str_digits=700"],
    ["-W", "error::UserWarning:__mp_main__", "-W", "error::UserWarning"],
]


@pytest.fixture(scope="module")
def plain(shared_site: Site) -> str:
    """What the program prints without options."""
    return shared_site.python(_PROGRAM).stdout


@pytest.mark.parametrize("way", [[], ["-m", "dragon", "--nodes", "2"]], ids=["python", "nodes"])
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_processes_have_the_interpreter_options_of_the_program(
    site: Site, plain: str, options: list[str], way: list[str]
) -> None:
    done = site.run(sys.executable, *options, *way, site.write(_PROGRAM), timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(plain.splitlines()) == 1, done.stdout
    assert done.stdout != plain


_VARIABLES = """
import locale, multiprocessing as mp, os, sys, time
import dragon
from dragon.native.process import Process
from dragon.native.queue import Queue
%(imports)s

VARIABLES = {"TZ": "Asia/Tokyo", "PYTHONUTF8": "1", "PYTHONHASHSEED": "7", "PYTHONWARNINGS": "ignore::UserWarning",
             "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

def look():
    ignores = "ignore::UserWarning" in sys.warnoptions
    return time.tzname[0], sys.flags.utf8_mode, ignores, locale.setlocale(locale.LC_CTYPE), %(threads)s, hash("abc")

def tell(queue):
    queue.put(look())

if __name__ == "__main__":
    mp.set_start_method("dragon")
    queue = Queue()
    def ask(process):
        process.start()
        process.join()
        return queue.get()
    print(ask(mp.Process(target=tell, args=(queue,))))
    print(ask(Process(tell, (queue,), env=VARIABLES)))
    os.environ.update(VARIABLES)
    print(ask(mp.Process(target=tell, args=(queue,))))
    with mp.Pool(1) as pool:
        print(pool.apply(look))
"""


@pytest.mark.parametrize("options", [(), ("--nodes", "2")], ids=["one", "two"])
def test_variables_that_python_reads_at_its_start_apply_to_new_processes(site: Site, options: tuple[str, ...]) -> None:
    found = all(map(importlib.util.find_spec, ("numpy", "threadpoolctl")))
    threads = "threadpoolctl.threadpool_info()[0]['num_threads']" if found else "1"
    imports = "import numpy, threadpoolctl" if found else ""
    clean = {"LC_ALL": "C", "TZ": "UTC", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "1"}
    done = site.dragon(*options, site.write(_VARIABLES % {"imports": imports, "threads": threads}), env=clean)
    before, *after = map(ast.literal_eval, done.stdout.splitlines())
    assert (before[:4], after[0][:5]) == (("UTC", 0, False, "C"), ("JST", 1, True, "C.UTF-8", 1)), done.stderr
    assert after == [after[0]] * 3
    assert before[5] != after[0][5]


def test_new_processes_do_not_have_a_time_zone_that_the_program_removed(site: Site) -> None:
    done = site.dragon(
        site.write("""
            import multiprocessing as mp, os, time
            import dragon

            if __name__ == "__main__":
                mp.set_start_method("dragon")
                with mp.Pool(1) as pool:
                    print(pool.apply(time.strftime, ("%Z",)))
                del os.environ["TZ"]
                with mp.Pool(1) as pool:
                    print(pool.apply(time.strftime, ("%Z",)))
        """),
        env={"TZ": "Asia/Tokyo"},
    )
    assert done.stdout.splitlines()[0] == "JST"
    assert done.stdout.splitlines()[1] != "JST"


_NUMBERS = """
        import multiprocessing as mp
        import numpy as np
        import dragon
        %s

        def draw(_=None):
            return np.random.random()

        def tell(queue):
            queue.put(draw())

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            processes = [mp.Process(target=tell, args=(queue,)) for _ in range(4)]
            for process in processes:
                process.start()
            print(len({queue.get() for _ in processes}))
            for process in processes:
                process.join()
"""


@pytest.mark.parametrize(
    ("at_import", "expected"),
    [("", "4"), ("np.random.random(10)", "4"), ("np.random.seed(3)", "1"), ("np.random.default_rng(3)", "4")]
    + [("np.random.set_state(np.random.RandomState(4).get_state())", "1")],
)
def test_numpys_generator_differs_between_processes_unless_the_program_seeds_it(
    site: Site, at_import: str, expected: str
) -> None:
    pytest.importorskip("numpy")
    assert site.python(_NUMBERS % at_import).stdout.split() == [expected]


@pytest.mark.parametrize("way", [[], ["-m", "dragon"]], ids=["python", "dragon"])
def test_coverage_measures_the_processes_of_a_program(site: Site, way: list[str]) -> None:
    pytest.importorskip("coverage")
    program = site.write("""
        import multiprocessing as mp
        import dragon

        def in_process(queue):
            value = 1
            queue.put(value)

        def in_pool(number):
            value = number + 1
            return value

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            process = mp.Process(target=in_process, args=(queue,))
            process.start()
            process.join()
            with mp.Pool(2) as pool:
                print(pool.map(in_pool, range(2)))
                pool.close()
                pool.join()
    """)
    site.write("[run]\nconcurrency = multiprocessing\nparallel = true\nsource = .\n", ".coveragerc")
    done = site.run(sys.executable, *way, "-m", "coverage", "run", program)
    assert done.stdout == "[1, 2]\n", done.stderr
    assert site.run(sys.executable, "-m", "coverage", "combine", "-q").returncode == 0
    report = site.run(sys.executable, "-m", "coverage", "report").stdout
    assert "program.py" in report
    assert "100%" in report, report
