"""Tools that run a program of the user: coverage, and pytest with pytest-xdist."""

from __future__ import annotations

import importlib.util

import pytest

from conftest import Site
from programs_of_others.test_unchanged import LIMIT, PYTHON, WAYS

MEASURED = """
    def in_process():
        return "process"


    def in_pool(number):
        return number


    def in_executor(number):
        return number


    def nowhere():
        return "nowhere"
"""

MAIN = """
    import multiprocessing as mp
    from concurrent.futures import ProcessPoolExecutor

    import dragon
    from measured import in_executor, in_pool, in_process

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        process = mp.Process(target=in_process)
        process.start()
        process.join()
        with mp.Pool(2) as pool:
            pool.map(in_pool, range(4))
            pool.close()
            pool.join()
        with ProcessPoolExecutor(2) as executor:
            list(executor.map(in_executor, range(4)))
"""


@pytest.mark.parametrize("way", WAYS)
def test_coverage_measures_child_processes(site: Site, way: str) -> None:
    if importlib.util.find_spec("coverage") is None:
        pytest.skip("coverage not installed (extra test)")
    site.write(MEASURED, "measured.py")
    program = site.write(MAIN)
    site.write("[run]\nconcurrency = multiprocessing\nparallel = true\ninclude = measured.py\n", ".coveragerc")
    done = site.run(*WAYS[way], "-m", "coverage", "run", program, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert site.run(*PYTHON, "-m", "coverage", "combine").returncode == 0
    report = site.run(*PYTHON, "-m", "coverage", "report", "--show-missing").stdout
    missed = MEASURED.splitlines().index('        return "nowhere"') + 1
    # All but the body of the function that nothing calls.
    assert report.splitlines()[2].split() == ["measured.py", "8", "1", "88%", str(missed)], report


SUITE = """
    import multiprocessing as mp
    import os
    from concurrent.futures import ProcessPoolExecutor

    import pytest


    def double(number):
        return 2 * number


    @pytest.fixture(scope="session")
    def pool():
        with mp.Pool(2) as made:
            yield made


    @pytest.mark.parametrize("number", range(12))
    def test_pool(pool, number):
        assert pool.map(double, range(number)) == list(range(0, 2 * number, 2))


    def put(queue):
        queue.put(os.environ["PYTEST_XDIST_WORKER"])


    @pytest.mark.parametrize("again", range(4))
    def test_process(again):
        assert mp.get_start_method() == "dragon"
        queue = mp.Queue()
        process = mp.Process(target=put, args=(queue,))
        process.start()
        assert queue.get(timeout=60) == os.environ["PYTEST_XDIST_WORKER"]
        process.join()
        assert process.exitcode == 0


    def test_executor():
        with ProcessPoolExecutor(2) as executor:
            assert list(executor.map(double, range(4))) == [0, 2, 4, 6]


    def test_that_fails():
        with mp.Pool(1) as pool:
            assert pool.apply(double, (1,)) == 3
"""


@pytest.mark.parametrize("way", ["python", "two nodes"])
def test_pytest_runs_with_two_workers(site: Site, way: str) -> None:
    if importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist not installed (extra test)")
    site.write("import dragon", "conftest.py")
    suite = site.write(SUITE, "test_mine.py")
    command = ("-m", "pytest", "-p", "no:cacheprovider", "-n", "2", suite)
    done = site.run(*WAYS[way], *command, timeout=LIMIT, env={"DRAGON_PATCH_MP": "1"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 17 passed" in done.stdout
    assert "assert 2 == 3" in done.stdout
