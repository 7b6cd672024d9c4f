"""CPython's own tests of multiprocessing and of process-pool executors, run with the start method "dragon".

Classes of many tests run in a process each, small ones a few to a process, and several processes at a time. A test that
hangs or crashes is a failed test; the tests after it continue in a new process. Processes and files of a run that the
tests of a process leave are failures too.
"""

from __future__ import annotations

import argparse
import faulthandler
import fnmatch
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import dragon  # noqa: F401 - makes "dragon" a start method

try:
    from test import _test_multiprocessing, support
    from test.support import script_helper
except ImportError as missing:  # some distributions package Python without its tests
    raise SystemExit(f"this Python has no tests of multiprocessing installed: {missing}") from missing

# Tests of implementation details of another start method, with the detail. Patterns of test names.
EXCLUDED = {
    "WithProcessesTestConnection.test_*fd_transfer": (
        "hands descriptors over through the socket behind a Pipe; ours is shared memory"
        " (pickling sockets and connections works: TestPicklingConnections)"
    ),
    "WithProcessesTestQueue.test_queue_feeder_*": (
        "is about the feeder thread of a Queue; ours has none: put() itself raises what pickling raises"
    ),
    "With*TestQueue.test_closed_queue_empty_exceptions": (
        "expects close() to do nothing to a queue not used yet; ours closes it (tests/mpbridge/test_closing.py)"
    ),
    # It then leaves a process behind, which fails the class: with our event in 7 of 100 tries beside others on two
    # cores, with a pipe and a fork without a start method in 1 of 900.
    "WithProcessesTestProcess.test_interrupt": (
        "interrupts a child that is about to call time.sleep(), which handles a signal that has come just before only"
        " when it ends; our event wakes its waiter sooner than the standard one (test_documented_process_ends.py)"
    ),
    **dict.fromkeys(
        ["ProcessPool*.test_idle_process_reuse_*", "ProcessPool*ShutdownTest.test_processes_terminate"],
        "expects workers that start one by one; ours start together, as with fork (mpbridge/popen.py)",
    ),
    "TestStartMethod.test_get_all*": "lists the standard start methods and nothing else; there is one more with us",
    **(
        {"TestFlags.test_flags": "uses the start method in an interpreter that is told to ignore installed packages"}
        if sys.version_info >= (3, 12)
        else {}
    ),
    "TestNoForkBomb.test_noforkbomb": (
        "runs a main program without a __main__ guard, which must fail; with us it works"
    ),
}
EXCLUDED_OVER_NODES = {
    "*.test_child_fd_inflation": "counts the descriptors of children, which need other ones on other nodes",
}

# These test multiprocessing.dummy, which uses threads only: no start method is involved.
_NOT_OURS = "WithThreads"
_PATIENCE = 10.0  # seconds for what tests started to end
_TOGETHER = 12  # tests of small classes per process: starting a run of several nodes takes longer than most tests


class Outcome(NamedTuple):
    """The outcome of a test. `text` is a reason or an error."""

    name: str
    kind: str
    text: str = ""
    seconds: float = 0.0


def _assert_python_ok(*arguments: str, **_: Any) -> Any:
    """Run a program in a Python that has registered the start method; the program itself does not register it."""
    path = os.pathsep.join([str(Path(__file__).parent / "early"), *sys.path])
    return script_helper.assert_python_ok(*arguments, PYTHONPATH=path)


def _main_program_tests() -> Iterator[type[unittest.TestCase]]:
    """Make the tests of main programs of all kinds: scripts, folders, zip files, modules of packages."""
    module: Any = importlib.import_module("test.test_multiprocessing_main_handling")
    module.assert_python_ok = _assert_python_ok
    source = module.test_source_main_skipped_in_children
    values = {"start_method": "dragon", "main_in_children_source": source, "__module__": __name__}
    yield type("DragonCmdLineTest", (module.MultiProcessingCmdLineMixin, unittest.TestCase), values)


def _executor_tests() -> Iterator[type[unittest.TestCase]]:
    """Make the process-pool tests of concurrent.futures, with the dragon context in place of "spawn"."""
    package = importlib.import_module("test.test_concurrent_futures")
    modules = [package]
    for found in pkgutil.iter_modules(getattr(package, "__path__", [])):
        if found.name.startswith("test_"):
            modules.append(importlib.import_module(f"{package.__name__}.{found.name}"))
    spawn = getattr(package, "ProcessPoolSpawnMixin", None)
    if spawn is None:
        spawn = importlib.import_module(f"{package.__name__}.util").ProcessPoolSpawnMixin

    class ProcessPoolDragonMixin(spawn):  # type: ignore[misc]
        ctx = "dragon"

    for module in modules:
        if hasattr(module, "assert_python_ok"):
            module.assert_python_ok = _assert_python_ok  # type: ignore[attr-defined]
        for name, cls in list(vars(module).items()):
            if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and spawn in cls.__bases__:
                bases = tuple(ProcessPoolDragonMixin if base is spawn else base for base in cls.__bases__)
                yield type(name.replace("Spawn", "Dragon"), bases, {"__module__": __name__})


def _install() -> Iterator[Outcome]:
    """Install the test classes in this module, where child processes find them; return those that are missing."""
    _test_multiprocessing.install_tests_in_module_dict(globals(), "dragon")
    for name in [name for name in globals() if name.startswith(_NOT_OURS)]:
        del globals()[name]
    for more in (_main_program_tests, _executor_tests):
        try:
            globals().update({cls.__name__: cls for cls in more()})
        except ModuleNotFoundError as missing:
            yield Outcome(missing.name or more.__name__, "skipped", "not installed with this Python")


def _adapt() -> None:
    """Adapt tests that inspect internals of the other implementation: check the same in Dragon's."""
    _test_multiprocessing.unpickleable_result = _unpicklable_result
    globals()["WithProcessesTestCondition"].check_invariant = _nobody_waits
    globals()["TestIgnoreEINTR"]._test_ignore = staticmethod(_ignore_two_signals)


def _unpicklable_result() -> Any:
    return threading.Lock()  # the lambda of the original can be pickled here


def _nobody_waits(test: unittest.TestCase, condition: Any) -> None:
    with condition:
        assert condition._notify(1) == 0


def _ignore_two_signals(conn: Any) -> None:
    """Wait for two signals. The original ends before its second signal if the pipe has room for its last message."""
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    conn.send("ready")
    conn.send(conn.recv())
    conn.send_bytes(b"x" * globals()["TestIgnoreEINTR"].CONN_MAX_SIZE)
    while len(came) < 2:
        time.sleep(0.01)


_missing = list(_install())
_adapt()


# ---- run some tests, in a process of their own


class _Report(unittest.TestResult):
    """Write test events as lines of JSON."""

    def __init__(self, file: Any, limit: float) -> None:
        super().__init__()
        self._file = file
        self._limit = limit
        self._outcome, self._detail = "passed", ""
        self._began = 0.0

    def write(self, **values: Any) -> None:
        print(json.dumps(values), file=self._file, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._outcome, self._detail = "passed", ""
        print(f"---- {_name(test)}", file=sys.stderr, flush=True)
        self.write(started=_name(test))
        faulthandler.dump_traceback_later(self._limit, exit=True)
        self._began = time.monotonic()

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - self._began
        self.write(ended=_name(test), outcome=self._outcome, detail=self._detail, seconds=seconds)
        super().stopTest(test)

    def _failed(self, test: Any, error: Any) -> None:
        detail = self._exc_info_to_string(error, test)  # type: ignore[attr-defined]
        print(detail, file=sys.stderr, flush=True)
        if isinstance(test, unittest.TestCase):
            self._outcome, self._detail = "failed", detail
        else:
            self.write(fixture=str(test), detail=detail)

    addError = addFailure = _failed

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._failed(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        if isinstance(test, unittest.TestCase):
            self._outcome, self._detail = "skipped", reason
        else:
            # "setUpClass (module.name)"
            self.write(skipped=reason, cls=str(test).rpartition(".")[2].rstrip(")"))

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._outcome = "passed"

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._outcome, self._detail = "failed", "it was expected to fail"


def _name(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def _run_in_order(names: list[str], report_path: str, limit: float) -> int:
    with open(report_path, "w", encoding="utf-8") as file:
        report = _Report(file, limit)
        tests = [globals()[cls](method) for cls, _, method in (name.partition(".") for name in names)]
        unittest.TestSuite(tests).run(report)
        report.write(left_behind=bool(support.environment_altered))
    return 0


# ---- run all tests


def _processes_of(session: int) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry))
    return found


def _leftovers(session: int, folder: Path) -> str:
    """Return what a process left after some time to end, and remove it."""
    deadline = time.monotonic() + _PATIENCE
    while (processes := _processes_of(session)) or any(folder.iterdir()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in processes]
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    return ", ".join([*commands, *(entry.name for entry in folder.iterdir())])


def _run_worker(names: list[str], limit: float, nodes: int | None) -> Iterator[Outcome]:
    """Run tests in one process. Tests that a crash or a hang kept from running have no outcome."""
    with (
        tempfile.TemporaryDirectory(prefix="d") as folder,
        tempfile.TemporaryFile("w+", errors="replace") as log,
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as report,
    ):
        environment = {**os.environ, "TMPDIR": folder}
        environment.pop("XDG_RUNTIME_DIR", None)
        worker = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                *(["-m", "dragon", "--nodes", str(nodes)] if nodes else []),
                __file__,
                "--limit",
                str(limit),
                "--report",
                report.name,
                "--",
                *names,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        code = worker.wait()
        running, ended = "", False
        classes = " and ".join(dict.fromkeys(name.partition(".")[0] for name in names))
        for line in report:
            event = json.loads(line)
            if "started" in event:
                running = event["started"]
            elif "ended" in event:
                # Python 3.12.1 reports the end of a skipped test without its start.
                yield Outcome(event["ended"], event["outcome"], event["detail"], event["seconds"])
                running = ""
            elif "fixture" in event:
                yield Outcome(event["fixture"], "failed", event["detail"])
            elif "skipped" in event:
                skipped = [name for name in names if name.startswith(event["cls"] + ".")]
                yield from (Outcome(name, "skipped", event["skipped"]) for name in skipped)
            else:
                ended = True
                if event["left_behind"]:
                    yield Outcome(classes, "failed", "it left something behind:\n" + _text(log))
        if running:
            text = _text(log).rpartition(f"---- {running}")[2]
            yield Outcome(running, "failed", f"it hung or crashed (exit code {code}):{text}", limit)
        elif not ended:
            yield Outcome(classes, "failed", f"its process ended (exit code {code}) between tests:\n{_text(log)}")
        left = _leftovers(worker.pid, Path(folder))
        if left and code == 0:
            yield Outcome(classes, "failed", f"left after the end: {left}\n{_text(log)}")


def _text(log: Any) -> str:
    log.seek(0)
    return str(log.read())[-8000:]


def _run_tests(names: list[str], limit: float, nodes: int | None) -> list[Outcome]:
    """Run tests one after the other, in as many processes as needed."""
    outcomes: list[Outcome] = []
    while names:
        outcomes += _run_worker(names, limit, nodes)
        seen = {outcome.name for outcome in outcomes}
        left = [name for name in names if name not in seen]
        if len(left) == len(names):
            outcomes += [Outcome(name, "failed", "it could not be run") for name in left]
            break
        names = left
    return outcomes


def _all_tests(pattern: str) -> Iterator[list[str]]:
    for cls in list(globals().values()):
        if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and cls.__module__ == __name__:
            names = [f"{cls.__name__}.{method}" for method in unittest.defaultTestLoader.getTestCaseNames(cls)]
            chosen = [name for name in names if pattern.lower() in name.lower() or fnmatch.fnmatch(name, pattern)]
            if chosen:
                yield chosen


def _joined(classes: list[list[str]]) -> list[list[str]]:
    """Return the tests of each process, the largest groups first."""
    groups: list[list[str]] = []
    for names in sorted(filter(None, classes), key=len, reverse=True):
        if groups and len(groups[-1]) + len(names) <= _TOGETHER:
            groups[-1] += names
        else:
            groups.append(names)
    return groups


def _reason_to_exclude(name: str, nodes: int | None) -> str | None:
    reasons = EXCLUDED | EXCLUDED_OVER_NODES if nodes and nodes > 1 else EXCLUDED
    return next((reason for pattern, reason in reasons.items() if fnmatch.fnmatch(name, pattern)), None)


def _show(outcome: Outcome, verbose: bool) -> None:
    if outcome.kind == "failed":
        print(f"FAILED  {outcome.name}\n{outcome.text}", flush=True)
    elif outcome.kind == "skipped":
        print(f"skipped {outcome.name}: {outcome.text}", flush=True)
    elif verbose:
        print(f"passed  {outcome.name} ({outcome.seconds:.1f} s)", flush=True)


def _alone(outcome: Outcome, limit: float, nodes: int | None) -> Outcome:
    """Run a test that failed beside others once more by itself, as CPython's own runner does: many tests measure
    time.
    """
    if outcome.kind != "failed" or "." not in outcome.name:
        return outcome
    again = next(one for one in _run_tests([outcome.name], limit, nodes) if one.name == outcome.name)
    print(f"{again.kind} {outcome.name} when it ran alone", flush=True)
    return again


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", metavar="PATTERN", default="", help="only tests whose name has or matches PATTERN")
    parser.add_argument("-v", action="store_true", help="show what passes, and the slowest tests")
    parser.add_argument("-j", metavar="N", type=int, default=4, help="processes that run at a time (default: 4)")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=60.0, help="for one test (default: 60)")
    parser.add_argument(
        "--nodes",
        metavar="N",
        type=int,
        help="run with the command dragon over N simulated nodes (default: plain python)",
    )
    parser.add_argument("--report", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        return _run_in_order(options.names, options.report, options.limit)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)

    outcomes = list(_missing)
    classes: list[list[str]] = []
    for names in _all_tests(options.k):
        excluded = {name: reason for name in names if (reason := _reason_to_exclude(name, options.nodes)) is not None}
        outcomes += [Outcome(name, "skipped", reason) for name, reason in excluded.items()]
        classes.append([name for name in names if name not in excluded])
    for outcome in outcomes:
        _show(outcome, options.v)
    with ThreadPoolExecutor(options.j) as threads:
        jobs = [threads.submit(_run_tests, names, options.limit, options.nodes) for names in _joined(classes)]
        for job in as_completed(jobs):
            for outcome in job.result():
                _show(outcome, options.v)
            outcomes += job.result()
    outcomes = [_alone(outcome, options.limit, options.nodes) for outcome in outcomes]
    if options.v:
        print("slowest:")
        for outcome in sorted(outcomes, key=lambda o: o.seconds, reverse=True)[:15]:
            print(f"  {outcome.seconds:5.1f} s  {outcome.name}")
    count = {kind: sum(o.kind == kind for o in outcomes) for kind in ("passed", "failed", "skipped")}
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
