"""Shared fixtures: run programs in separate processes, and check that nothing remains of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from dragon.data.ddict import DDict
    from dragon.infrastructure.node_desc import NodeDescriptor
    from dragon.telemetry import Telemetry

MARK = "DRAGON_TEST_MARK"
# A test may be slow on a busy machine; only pytest's own timeout applies.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
# A shell that starts pytest in the background makes it ignore Ctrl-C and Ctrl-\, and nohup makes it ignore SIGHUP.
# Every program of a test would inherit that. A program does not inherit a signal's handler, only that it is ignored.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, lambda *_: None),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
pytest_plugins = [
    "at_once",
    "forks",
    "peers.browser",
    "peers.mpi",
    "peers.pods",
    "peers.prometheus",
    "peers.ray",
    "peers.simulated",
    "peers.slurm",
    "peers.ssh",
    "tiers",
]


@dataclass
class Site:
    """An isolated place for programs: a folder, a runtime folder, and a mark that all their processes carry."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    shared: set[str] = field(default_factory=set)  # names in /dev/shm that existed before the test
    users: set[int] = field(default_factory=lambda: {os.getuid()})  # user ids as which its programs run
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        runtime = self.folder / "r"
        runtime.mkdir(exist_ok=True, mode=0o700)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DRAGON_")}
        return {**clean, MARK: self.mark, "XDG_RUNTIME_DIR": str(runtime)}

    def write(self, source: str, name: str = "program.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(source))
        return path

    def start(self, *command: str | Path, **options: object) -> subprocess.Popen[str]:
        environment = {**self.environment, **options.pop("env", {})}  # type: ignore[dict-item]
        process = subprocess.Popen(  # type: ignore[call-overload]
            [str(c) for c in command],
            env=environment,
            cwd=self.folder,
            text=True,
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                # readline() must read no more than its line from the pipe: communicate() reads the rest.
                stream._CHUNK_SIZE = 1
        self.started.append(process)
        return process  # type: ignore[no-any-return]

    def run(self, *command: str | Path, timeout: float = 60, **options: object) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{command} did not end in {timeout} s\n{out}\n{err}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def python(self, source: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a program with plain Python."""
        return self.run(sys.executable, self.write(source), *arguments, **options)  # type: ignore[arg-type]

    def dragon(self, *arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        """Run the `dragon` command."""
        return self.run(sys.executable, "-m", "dragon", *arguments, **options)  # type: ignore[arg-type]

    def processes(self) -> list[tuple[int, str]]:
        """Return the id and command line of every live process that carries the mark."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if self.mark.encode() in environment and state not in "ZX":
                found.append((int(entry), command))
        return found

    def leftovers(self) -> list[str]:
        """Return descriptions of the processes, files and shared memory that are left."""
        # Unlike Path.rglob(), os.walk() tolerates a run that is still removing its folder.
        runtime = os.walk(self.folder / "r")
        files = [os.path.join(at, name) for at, folders, names in runtime for name in folders + names]
        # Semaphores of the standard library and of loky belong to processes that tests start, not to Dragon.
        others = ("sem.mp-", "sem.loky-")
        names = {name for name in os.listdir("/dev/shm") if not name.startswith(others)} - self.shared
        data = [name for name in names if _owner(name) in self.users and not _is_in_use(name)]
        return [f"process {pid}: {command}" for pid, command in self.processes()] + files + data

    def kill(self, command: str = "") -> int:
        """Kill every process whose command line begins with `command`; return their number."""
        found = [pid for pid, line in self.processes() if line.startswith(command)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):  # it ended with one that was killed before
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def end(self) -> None:
        """End the processes that a failed test has left, so that they do not disturb the next test."""
        self.kill()
        for process in self.started:
            with process:
                process.kill()

    def assert_nothing_left(self, within: float = 15) -> None:
        deadline = time.monotonic() + within
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []


@pytest.fixture
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Provide folders of runs and claims that no other test uses."""
    place = tmp_path_factory.mktemp("c")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.setenv("TMPDIR", str(place))


def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Provide a place to run programs in, and assert afterwards that nothing is left there."""
    place = Site(tmp_path_factory.mktemp("s"))
    place.shared = set(os.listdir("/dev/shm"))
    yield place
    place.assert_nothing_left()


site = pytest.fixture(_place, name="site")
# For a run that all tests of a module use.
shared_site = pytest.fixture(_place, name="shared_site", scope="module")


def _owner(name: str) -> int | None:
    """Return the user id that owns the shared memory; None if it no longer exists."""
    try:
        return os.stat(f"/dev/shm/{name}").st_uid
    except FileNotFoundError:
        return None


def _is_in_use(name: str) -> bool:
    """Return whether shared memory belongs to a run, an MPI job or a program of joblib of a test beside this one."""
    joblib = re.fullmatch(r"joblib_memmapping_folder_(\d+)_.*", name)
    if joblib is not None:  # a folder, which is there as long as the program
        return Path(f"/proc/{joblib[1]}").exists()
    owner = re.fullmatch(r"dragon-\d+\.(\d+)-\d+-([0-9a-f]+)-.*", name)
    if owner is not None:  # a host of a test that runs at the same time has a pid namespace of its own
        return owner[2] != f"{os.stat('/proc/self/ns/pid').st_ino:x}" or Path(f"/proc/{owner[1]}").exists()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text():
                return True
        except OSError:
            continue  # the process has ended, or belongs to another user
    return False


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    """Return a function that waits until a condition holds, and that fails the test if this takes too long."""

    def wait(condition: Callable[[], object], timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come about"
            time.sleep(0.01)

    return wait


SetNodes = Callable[..., "list[NodeDescriptor]"]


def described(index: int, cpus: int = 4, gpus: int = 4, **fields: object) -> NodeDescriptor:
    """Describe a node of a cluster with NVIDIA GPUs."""
    from dragon.infrastructure.node_desc import NodeDescriptor

    values = {
        "host_name": f"node{index}.cluster.org",
        "h_uid": 100 + index,
        "addresses": [f"10.0.0.{index}"],
        "cpus": list(range(cpus)),
        "gpus": list(range(gpus)),
        "gpu_vendor": "nvidia" if gpus else "",
        "physical_mem": 2**30,
        "index": index,
        "is_primary": index == 0,
    }
    return NodeDescriptor(**{**values, **fields})  # type: ignore[arg-type]


@pytest.fixture
def set_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetNodes]:
    """Return a function that gives this process's run the nodes of a test; this process is on the node of index
    `own`.
    """
    from dragon.runtime import placement
    from dragon.runtime.nodes import write_nodes
    from dragon.runtime.run import this_run

    run = this_run()
    monkeypatch.setattr(placement, "_told", {})

    def set_them(*nodes: NodeDescriptor, own: int = 0) -> list[NodeDescriptor]:
        monkeypatch.setattr(run, "node", own, raising=False)
        write_nodes(run.folder, list(nodes))
        return list(nodes)

    yield set_them
    (run.folder / "nodes.json").unlink(missing_ok=True)


@pytest.fixture
def make() -> Iterator[Callable[..., DDict]]:
    """Return a function that makes dictionaries over all nodes of the run; they are destroyed after the test."""
    from dragon.data.ddict import DDict
    from dragon.native.machine import System

    made: list[DDict] = []

    def make_one(managers_per_node: int = 2, total_mem: int = 64 * 2**20, **options: Any) -> DDict:
        made.append(DDict(managers_per_node, System().nnodes, total_mem, **options))
        return made[-1]

    yield make_one
    for ddict in made:
        ddict.destroy()


@pytest.fixture
def ddict(make: Callable[..., DDict]) -> DDict:
    """Make a dictionary with two managers on each node."""
    return make()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Start telemetry in this process's run, with only the tests' own metrics."""
    from dragon.telemetry import Telemetry

    begun = Telemetry()
    begun.start(1)
    yield begun
    begun.shutdown()
