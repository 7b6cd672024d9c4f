"""A run that several programs use: published under a name, and attached to by other programs of the same user.

# in a program of the run                      # in any other program on one of its nodes
from dragon.workflows import runtime           from dragon.workflows import runtime
runtime.publish("training")                    text = runtime.lookup("localhost", "training")
                                               with runtime.attach(sdesc_str=text):
                                                   ...  # queues, processes, dictionaries of that run
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from dragon.infrastructure.errors import NotSupportedError, RunEndedError
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.structs import msgspec
from dragon.runtime import folder as run_folder
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.run import current_run, join_run, leave, this_run
from dragon.runtime.run_info import RunInfo, run_name

__all__ = ["DragonRuntime", "LocalRuntime", "attach", "current_runtime", "lookup", "publish", "start_local_runtime"]

_POLL_S = 0.02


class _Descriptor(msgspec.Struct):
    """What a run is called, and a host that it is on."""

    run: str
    host: str


class DragonRuntime:
    """A run that this process belongs to. Use it as a context manager to leave the run at the end of the block.

    Examples:
        >>> from dragon.workflows import runtime
        >>> with runtime.start_local_runtime() as local:
        ...     attached = runtime.attach(runtime=local)
        ...     attached.name in attached.sdesc
        ...     attached.detach()
        True
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = run_name(folder, RunInfo.read(folder))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        """The name of the run in `dragon ps`."""
        return self._name

    @property
    def sdesc(self) -> str:
        """The descriptor of the run, with which any program on one of its nodes can attach."""
        return msgspec.json.encode(_Descriptor(self.name, socket.gethostname())).decode()

    def enable(self) -> None:
        """Join the run (again). Raises RuntimeError if this process belongs to another run, or this one has ended."""
        known = current_run()
        if known is not None and known.folder == self._folder:
            return
        if known is not None:
            raise RuntimeError(f"this process belongs to the run in {known.folder} already; attach before it is used")
        try:
            join_run(self._folder)
        except RunEndedError as error:
            raise RuntimeError(str(error)) from error

    def disable(self) -> None:
        """Leave the run: its objects cannot be used in this process any more. What was started continues."""
        known = current_run()
        if known is not None and known.folder == self._folder:
            leave()

    detach = close = disable

    def __enter__(self) -> DragonRuntime:
        self.enable()
        return self

    def __exit__(self, *raised: object) -> None:
        self.disable()


class LocalRuntime:
    """A run on this machine that lasts until stop(), or until this process ends. This process must attach to use it.

    Examples:
        >>> from dragon.native import Queue
        >>> from dragon.workflows import runtime
        >>> with runtime.start_local_runtime() as local, runtime.attach(runtime=local):
        ...     queue = Queue()
        ...     queue.put("hello")
        ...     queue.get()
        'hello'
    """

    def __init__(self, dragon_cmd: Sequence[str] | str | None = None) -> None:
        command = dragon_cmd.split() if isinstance(dragon_cmd, str) else dragon_cmd
        self._command = [*(command or (sys.executable, "-m", "dragon")), "-m", "dragon.workflows.idle"]
        self._process: subprocess.Popen[str] | None = None
        self._output: threading.Thread | None = None
        self._descriptor = ""

    def start(self, timeout: float = 60) -> None:
        """Start the run. Raises TimeoutError after `timeout` seconds, RuntimeError if it cannot start."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = self._process.stdout
        assert said is not None
        command = " ".join(self._command)
        if not select.select([said], [], [], timeout)[0]:
            self.stop(timeout)
            raise TimeoutError(f"no run after {timeout} s: {command}")
        self._descriptor = said.readline().strip()
        if not self._descriptor:
            code = self._process.wait()
            self.stop()
            raise RuntimeError(f"no run: {command} ended with {code}")
        self._output = threading.Thread(target=_pass_on, args=(said,), daemon=True)
        self._output.start()
        atexit.register(self.stop)

    @property
    def attach_descr(self) -> str:
        """The descriptor of the run, for attach()."""
        return self._descriptor

    @property
    def auth_token(self) -> None:
        """Always None: a run is open only to the user that started it."""

    def attach(self) -> DragonRuntime:
        """Attach this process to the run."""
        return attach(sdesc_str=self._descriptor)

    def detach(self) -> None:
        """Detach this process from the run."""
        here = current_runtime()
        if here is not None and here.sdesc == self._descriptor:
            here.detach()

    def stop(self, timeout: float = 30) -> None:
        """End the run, and everything in it. It is killed after `timeout` seconds."""
        if self._process is None:
            return
        self.detach()
        with self._process as process:  # which closes its streams
            self._process = None
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
            if self._output is not None:
                self._output.join()

    def __enter__(self) -> LocalRuntime:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def _pass_on(said: IO[str]) -> None:
    """Print what processes of other nodes print, which the front end writes to its stdout."""
    for line in said:
        sys.stdout.write(line)
        sys.stdout.flush()


def start_local_runtime(timeout: float = 60, dragon_cmd: Sequence[str] | str | None = None) -> LocalRuntime:
    """Start a run on this machine with `dragon_cmd` (for example "dragon --nodes 2"). Raises as LocalRuntime.start()
    does."""
    made = LocalRuntime(dragon_cmd)
    made.start(timeout)
    return made


def current_runtime() -> DragonRuntime | None:
    """Return the run that this process belongs to; None if it belongs to none."""
    known = current_run()
    return None if known is None else DragonRuntime(known.folder)


def publish(name: str, publish_dir: str | Path | None = None) -> Path:
    """Give this process's run a name by which lookup() finds it, until this process ends. Returns the path of the file.

    The file is readable by this user only, in `publish_dir`, or else in ~/.dragon, which the nodes of a cluster usually
    share. Raises FileExistsError if a live run has that name, ValueError for an invalid name.
    """
    this_run()
    here = current_runtime()
    assert here is not None
    path = _place(name, publish_dir)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _alive_here(path):
        raise FileExistsError(f"a run is published as {name} already, in {path}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(here.sdesc)
    temporary.rename(path)
    atexit.register(path.unlink, missing_ok=True)
    return path


def lookup(system: str, name: str, timeout_in: float | None = None, publish_dir: str | Path | None = None) -> str:
    """Return the descriptor of the run that was published as `name`, for attach(); waits up to `timeout_in` seconds for
    it.

    `system` is this host, or another one that shares the folder. Raises RuntimeError if there is no such run.
    """
    path = _place(name, publish_dir)
    deadline = time.monotonic() + (checked_seconds("timeout_in", timeout_in) or 0.0)
    while True:
        try:
            text = path.read_text()
        except FileNotFoundError:
            text = ""
        if text and (msgspec.json.decode(text, type=_Descriptor).host != socket.gethostname() or _alive_here(path)):
            return text
        if time.monotonic() >= deadline:
            where = f"{path} on {socket.gethostname()}"
            raise RuntimeError(
                f"no run on {system} is published as {name}: looked for {where}, and waited {timeout_in or 0} s"
            )
        time.sleep(_POLL_S)


def attach(
    timeout: float = 30,
    runtime: LocalRuntime | None = None,
    auth_token: str | None = None,
    sdesc_str: str | None = None,
    oob_ssh_tunnel_override: object = None,
    remote_cwd: object = None,
) -> DragonRuntime:
    """Attach this process to a run that another program started: that of a descriptor, or of `runtime`, or else the
    only one on this machine.

    The run must have a node on this machine; it is waited for up to `timeout` seconds. No token is needed: a run is
    open only to the user that started it. Raises RuntimeError if there is no such run, or several, or if this process
    belongs to another; NotSupportedError for `oob_ssh_tunnel_override` and `remote_cwd`.
    """
    if oob_ssh_tunnel_override is not None or remote_cwd is not None:
        raise NotSupportedError("a program attaches to a run on one of its nodes: start it there, for example with ssh")
    timeout = plain_number(timeout)
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}; a descriptor is given as sdesc_str")
    if not isinstance(runtime, LocalRuntime | None):
        raise TypeError(
            f"runtime must be what start_local_runtime() gave, not {runtime!r}; a descriptor is given as sdesc_str"
        )
    text = runtime.attach_descr if runtime is not None else sdesc_str
    wanted = None if text is None else _read(text)
    deadline = time.monotonic() + timeout
    while not (found := _runs_here(wanted.run if wanted else None)):
        if time.monotonic() >= deadline:
            what = f"run {wanted.run}, whose descriptor is from {wanted.host}," if wanted else "run of yours"
            raise RuntimeError(
                f"no {what} has a node on {socket.gethostname()}: start this program on one of its nodes"
            )
        time.sleep(_POLL_S)
    if len(found) > 1:
        raise RuntimeError(f"there are several runs here: {', '.join(sorted(found))}; say which with sdesc_str")
    made = DragonRuntime(next(iter(found.values())))
    made.enable()
    return made


def _read(text: str) -> _Descriptor:
    try:
        return msgspec.json.decode(text, type=_Descriptor)
    except ValueError as error:
        raise RuntimeError(f"{text!r} is not a descriptor of a run; publish() and `sdesc` give one") from error


def _place(name: str, folder: str | Path | None) -> Path:
    if not isinstance(name, str):
        raise TypeError(f"the name of a run is a string, not {name!r}")
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"{name!r} cannot be the name of a run: it is the name of a file")
    return Path(folder or Path.home() / ".dragon") / name


def _alive_here(path: Path) -> bool:
    try:
        return bool(_runs_here(_read(path.read_text()).run))
    except FileNotFoundError:
        return False


def _runs_here(wanted: str | None) -> dict[str, Path]:
    """Return the folders of live runs on this machine by name, or only of `wanted`; for a run with several nodes here,
    that of the first."""
    found: dict[str, tuple[int, Path]] = {}
    for folder in run_folder.all_runs():
        try:
            info = RunInfo.read(folder)
        except RunEndedError:
            continue  # it is starting or ending
        name = run_name(folder, info)
        if wanted in (None, name) and run_folder.is_alive(info.agent):
            found[name] = min(found.get(name, (info.node, folder)), (info.node, folder))
    return {name: folder for name, (_, folder) in found.items()}
