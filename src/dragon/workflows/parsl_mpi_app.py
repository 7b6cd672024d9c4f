"""MPI programs as apps of Parsl."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dragon.infrastructure.facts import PMIBackend
from dragon.native.process import MSG_DEVNULL, MSG_PIPE, Process, ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup
from dragon.workflows.parsl_executor import DragonParslExecutor

try:
    from parsl.app.errors import RemoteExceptionWrapper
    from parsl.app.python import PythonApp
except ModuleNotFoundError as error:
    message = "Dragon's executors for Parsl need it: pip install dragon-runtime[parsl]"
    raise ModuleNotFoundError(message, name="parsl") from error

__all__ = ["DragonMPIExecutor", "mpi_app"]


def mpi_app(
    function: Callable[..., Any] | None = None,
    data_flow_kernel: object = None,
    cache: bool = False,
    executors: list[str] | str = "all",
    ignore_for_cache: list[str] | None = None,
) -> Any:
    """Make a Parsl app from a function that describes an MPI program, for a DragonMPIExecutor.

    The function returns (executable, working directory, policy or None, number of ranks, list of arguments). The result
    of the app is available when the program has started: {"in": connection to the stdin of rank 0, "out": connection
    with the lines it writes to stdout, "exit_code": a future}. The exit code is 0, or that of the first rank with
    another one. The arguments are those of Parsl's own decorators.
    """

    def decorate(one: Callable[..., Any]) -> PythonApp:
        return PythonApp(one, data_flow_kernel, cache, executors, ignore_for_cache)

    return decorate if function is None else decorate(function)


class DragonMPIExecutor(DragonParslExecutor):
    """Runs the programs that mpi_app() describes, each as a process group.

    Args:
        label: its name, by which apps choose it.
        pmi: how the ranks find each other, as for ProcessGroup; None for programs without MPI.
        storage_access, working_dir: as for Parsl's own executors.

    Examples:
        >>> import parsl
        >>> from dragon.workflows.parsl_mpi_app import DragonMPIExecutor, mpi_app
        >>> @mpi_app(executors=["ranks"])
        ... def ranks(count):
        ...     return "echo", ".", None, count, ["hello"]
        >>> with parsl.load(parsl.Config([DragonMPIExecutor("ranks", pmi=None)], initialize_logging=False)):
        ...     ranks(2).result()["exit_code"].result()
        0
    """

    def __init__(
        self,
        label: str = "dragon_process_group",
        pmi: PMIBackend | str | None = PMIBackend.AUTO,
        storage_access: list[Any] | None = None,
        working_dir: str | None = None,
    ) -> None:
        super().__init__(label, storage_access, working_dir)
        self.pmi = pmi
        self._running: set[threading.Thread] = set()

    def submit(
        self, func: Callable[..., Any], resource_specification: dict[str, Any], *args: object, **kwargs: object
    ) -> Future[Any]:
        """Start the program that the function describes. Raises UnsupportedFeatureError for a resource
        specification."""
        self.check(resource_specification)
        started: Future[Any] = Future()

        def run() -> None:
            self._run(started, func, args, kwargs)
            self._running.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"dragon-{self.label}", daemon=True)
        self._running.add(thread)
        thread.start()
        return started

    def _run(
        self, started: Future[Any], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Start the program, and wait until it has ended."""
        try:
            described = func(*args, **kwargs)
            if isinstance(described, RemoteExceptionWrapper):
                started.set_result(described)  # Parsl raises it
                return
            group = self._group(*described)
            group.init()
            group.start()
            head = Process(None, ident=group.puids[0])
            exit_code: Future[int] = Future()
            started.set_result({"in": head.stdin_conn, "out": head.stdout_conn, "exit_code": exit_code})
        except Exception as error:
            started.set_exception(error)
            return
        try:
            group.join()
        except DragonUserCodeError:
            pass  # its exit code is the result
        except Exception as error:
            exit_code.set_exception(error)
            return
        exit_code.set_result(next((code for _, code in group.exit_status if code), 0))
        group.close()

    def _group(self, executable: str, folder: str, policy: Any, ranks: int, arguments: list[str]) -> ProcessGroup:
        group = ProcessGroup(pmi=self.pmi, policy=policy)
        head = ProcessTemplate(executable, arguments, cwd=folder, stdin=MSG_PIPE, stdout=MSG_PIPE)
        group.add_process(1, head)
        if ranks > 1:
            other = ProcessTemplate(executable, arguments, cwd=folder, stdin=MSG_DEVNULL, stdout=MSG_DEVNULL)
            group.add_process(ranks - 1, other)
        return group

    def shutdown(self) -> None:
        """Wait until all programs have ended."""
        for thread in list(self._running):
            thread.join()
        super().shutdown()
