"""The executors for Parsl."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import Site
from peers.mpi import Mpi

parsl = pytest.importorskip("parsl")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:parsl", "ignore::ResourceWarning")

from parsl.executors.errors import UnsupportedFeatureError  # noqa: E402

from dragon.workflows.executor import LostTaskError  # noqa: E402
from dragon.workflows.parsl_batch_executor import DragonBatchPoolExecutor  # noqa: E402
from dragon.workflows.parsl_executor import DragonPoolExecutor  # noqa: E402
from dragon.workflows.parsl_mpi_app import DragonMPIExecutor, mpi_app  # noqa: E402


@contextmanager
def loaded(folder: Path, *executors: Any) -> Iterator[None]:
    """Load Parsl with these executors, and remove it from this process after the block."""
    config = parsl.Config(executors=list(executors), run_dir=str(folder / "runs"), initialize_logging=False)
    with parsl.load(config):
        yield
    parsl.clear()


def double(x: int) -> int:
    return 2 * x


def who(_: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def fail(text: str) -> None:
    raise KeyError(text)


@pytest.mark.parametrize("kind", [DragonPoolExecutor, DragonBatchPoolExecutor])
def test_apps_run_in_the_workers(tmp_path: Path, kind: Any) -> None:
    with loaded(tmp_path, kind(max_processes=2)):
        twice = parsl.python_app(double)
        assert twice(twice(twice(1))).result(timeout=60) == 8
        assert [future.result(timeout=60) for future in [twice(i) for i in range(10)]] == list(range(0, 20, 2))
        pids = {future.result(timeout=60) for future in [parsl.python_app(who)(i) for i in range(20)]}
        assert 1 <= len(pids) <= 2
        assert os.getpid() not in pids
        with pytest.raises(KeyError, match="on purpose"):
            parsl.python_app(fail)("on purpose").result(timeout=60)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dragon-parsl")]


def end_if(number: int, last: int) -> int:
    if number == last:
        os._exit(4)
    return number


@pytest.mark.parametrize("kind", [DragonPoolExecutor, DragonBatchPoolExecutor])
def test_an_app_that_ends_its_worker_does_not_affect_other_apps(tmp_path: Path, kind: Any) -> None:
    with loaded(tmp_path, kind(max_processes=2)):
        futures = [parsl.python_app(end_if)(number, 2) for number in range(6)]
        assert isinstance(futures[2].exception(timeout=60), LostTaskError)
        assert [future.result(timeout=60) for future in futures if future is not futures[2]] == [0, 1, 3, 4, 5]


def threads(parsl_resource_specification: Any = None) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def test_an_app_gets_the_resources_of_its_specification(tmp_path: Path) -> None:
    with loaded(tmp_path, DragonPoolExecutor(max_processes=2)):
        app = parsl.python_app(threads)
        assert app(parsl_resource_specification={"cores": 2, "memory": 1}).result(60) == "2"
        with pytest.raises(ValueError, match="needs 1000000 CPUs"):
            app(parsl_resource_specification={"cores": 1_000_000}).result(60)


def test_unsupported_options_raise_errors(tmp_path: Path) -> None:
    executor = DragonPoolExecutor()
    with pytest.raises(UnsupportedFeatureError):
        executor.submit(double, {"disk": 2}, 1)
    with pytest.raises(NotImplementedError):
        executor.scale_out(1)
    with pytest.raises(NotImplementedError):
        executor.scale_in(1)
    with pytest.raises(RuntimeError, match="not started"):
        executor.submit(double, {}, 1)
    with pytest.raises(ValueError, match="batch_size"):
        DragonBatchPoolExecutor(batch_size=0)
    assert "label='dragon'" in repr(executor)


@mpi_app
def shell(command: str, ranks: int, folder: str) -> Any:
    return "sh", folder, None, ranks, ["-c", command]


def test_an_mpi_app_returns_connections_to_rank_0(tmp_path: Path) -> None:
    with loaded(tmp_path, DragonMPIExecutor(pmi=None)):
        ends = shell("read word; echo $word $(pwd)", 1, str(tmp_path)).result(timeout=60)
        ends["in"].send("hello\n")
        assert ends["out"].recv() == f"hello {tmp_path}\n"
        with pytest.raises(EOFError):
            ends["out"].recv()
        assert ends["exit_code"].result(timeout=60) == 0
        failed = shell("exit 3", 2, str(tmp_path)).result(timeout=60)
        assert failed["exit_code"].result(timeout=60) == 3


@mpi_app
def alltoall(program: str, folder: str) -> Any:
    return program, folder, None, 2, ["-m", "8", "-i", "2"]


def test_the_ranks_of_an_mpi_app_communicate_with_each_other(tmp_path: Path, mpi: Mpi) -> None:
    program = tmp_path / "alltoall"
    mpi.compile_alltoall(program)
    with loaded(tmp_path, DragonMPIExecutor()):
        ends = alltoall(str(program), str(tmp_path)).result(timeout=60)
        assert "2 ranks" in ends["out"].recv()
        assert ends["exit_code"].result(timeout=60) == 0


def test_the_error_of_an_mpi_app_that_cannot_start_has_the_reason(tmp_path: Path) -> None:
    with loaded(tmp_path, DragonMPIExecutor(pmi=None)):
        with pytest.raises(FileNotFoundError, match="working directory"):
            shell("true", 1, str(tmp_path / "missing")).result(timeout=60)
        with pytest.raises(KeyError, match="before it starts"):
            mpi_app(fail)("before it starts").result(timeout=60)


def test_without_parsl_the_error_names_the_extra(site: Site) -> None:
    for module in ("parsl_executor", "parsl_batch_executor", "parsl_mpi_app"):
        code = f"import sys; sys.modules['parsl'] = None; import dragon.workflows.{module}"
        done = site.run(sys.executable, "-c", code)
        assert "dragon-runtime[parsl]" in done.stderr
