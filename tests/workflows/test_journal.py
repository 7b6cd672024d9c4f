"""A batch's journal, from which a program that is started again goes on."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import Site
from dragon.native import Queue
from dragon.native.process import ProcessTemplate
from dragon.workflows.batch import Batch, BatchError


class Place:
    """A journal, and a file to which each task that runs adds a line."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.journal, self.ran = folder, folder / "run.journal", folder / "ran"

    def batch(self) -> Batch:
        return Batch(workers_per_node=2, journal=self.journal)

    def runs(self) -> Counter[str]:
        return Counter(self.ran.read_text().split()) if self.ran.exists() else Counter()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def note(ran: Path, what: str) -> None:
    with ran.open("a") as file:
        file.write(f"{what}\n")


def draw(ran: Path, what: str) -> float:
    note(ran, what)
    return random.random()


def add(ran: Path, *numbers: float) -> float:
    note(ran, "add")
    return sum(numbers)


def large(ran: Path, size: int) -> Any:
    import numpy as np

    note(ran, "large")
    return np.arange(size)


def fail(ran: Path) -> None:
    note(ran, "fail")
    raise KeyError("again")


def write(ran: Path, path: Path, text: str) -> None:
    note(ran, f"write-{text}")
    path.write_text(text)


def read(ran: Path, path: Path) -> str:
    note(ran, "read")
    return path.read_text()


def test_results_are_taken_from_the_journal(place: Place) -> None:
    def program() -> list[Any]:
        with place.batch() as batch:
            draws = [batch.function(draw, place.ran, f"draw{number % 2}") for number in range(4)]
            arrays = batch.function(large, place.ran, 100_000)
            total = batch.function(add, place.ran, *draws)
            code = batch.process(ProcessTemplate("sh", ["-c", f"echo process >> {place.ran}"]))
            codes = batch.job([(2, ProcessTemplate("sh", ["-c", f"echo job >> {place.ran}"]))])
            nested = batch.function(lambda: draw(place.ran, "lambda"))
            rest = [one.get(60) for one in (total, code, codes, nested)]
            return [[one.get(60) for one in draws], arrays.get(60).tolist(), *rest]

    first = program()
    assert len(set(first[0])) == 4  # equal calls have results of their own
    assert program() == program() == first
    ran = {"draw0": 2, "draw1": 2, "large": 1, "add": 1, "process": 1, "job": 2, "lambda": 1}
    assert place.runs() == ran


def test_failures_are_not_kept(place: Place) -> None:
    for _ in range(2):
        with place.batch() as batch:
            with pytest.raises(KeyError):
                batch.function(fail, place.ran).get(60)
            assert batch.process(ProcessTemplate("sh", ["-c", f"echo code >> {place.ran}; exit 3"])).get(60) == 3
    assert place.runs() == {"fail": 2, "code": 2}


def test_a_changed_function_is_another_task(place: Place) -> None:
    results = []
    for change in (1, 2, 1):
        with place.batch() as batch:
            results.append(batch.function(eval(f"lambda number: number + {change}"), 10).get(60))
    assert results == [11, 12, 11]


_MODULE = """
FACTOR = {factor}

def helper(number):
    return number {operator} 1

def again(number):
    return again(number - 1) if number > 100 else FACTOR * helper(number)
"""


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({}, 22),
        ({"factor": 3}, 33),
        ({"operator": "-"}, 18),
        ({"name": "other", "factor": 5}, 55),
    ],
    ids=["nothing", "a constant of the module", "a function that it calls", "another module"],
)
def test_a_function_is_another_task_if_what_it_uses_of_its_module_is_changed(
    site: Site, change: dict[str, Any], result: int
) -> None:
    found = []
    for changed in ({}, change):
        values = {"name": "mine", "factor": 2, "operator": "+", **changed}
        site.write(_MODULE.format(**values), f"{values['name']}.py")
        program = f"""
            from {values["name"]} import again
            from dragon.workflows.batch import Batch

            if __name__ == "__main__":
                with Batch(workers_per_node=1, journal="run.journal") as batch:
                    task = batch.function(again, 10)
                    print(task.get(), "earlier" in task.explain())
        """
        found.append(site.python(program, env={"PYTHONDONTWRITEBYTECODE": "1"}).stdout)
    assert found == ["22 False\n", f"{result} {not change}\n"]


def test_a_key_names_a_task_in_place_of_its_arguments(place: Place) -> None:
    for _ in range(2):
        with place.batch() as batch:
            batch.options(key="first").function(draw, place.ran, str(time.time())).get(60)
    assert place.runs().total() == 1


def put_one(queue: Any, ran: Path) -> None:
    note(ran, "put")
    queue.put(1)


def test_a_task_with_a_handle_is_run_each_time(place: Place) -> None:
    for _ in range(2):
        with place.batch() as batch:
            queue = Queue()
            batch.function(put_one, queue, place.ran)
            assert queue.get(timeout=60) == 1
    assert place.runs() == {"put": 2}


def write_twice(place: Place) -> tuple[str, str]:
    path = place.folder / "data"
    with place.batch() as batch:
        batch.options(writes=[batch.write(path)]).function(write, place.ran, path, "one")
        first = batch.options(reads=[batch.read(path)]).function(read, place.ran, path)
        batch.options(writes=[batch.write(path)]).function(write, place.ran, path, "two")
        return first.get(60), batch.options(reads=[batch.read(path)]).function(read, place.ran, path).get(60)


def test_a_file_that_is_written_twice_is_written_again_in_order(place: Place) -> None:
    assert write_twice(place) == write_twice(place) == ("one", "two")


@pytest.mark.parametrize("change", ["none", "changed", "removed"])
def test_a_task_is_run_again_if_its_files_have_changed(place: Place, change: str) -> None:
    path = place.folder / "data"
    for _ in range(2):
        with place.batch() as batch:
            batch.options(writes=[batch.write(path)]).function(write, place.ran, path, "one")
            assert batch.options(reads=[batch.read(path)]).function(read, place.ran, path).get(60) == "one"
        if change == "changed":
            path.write_text("other")
        elif change == "removed":
            path.unlink()
    times = 1 if change == "none" else 2
    assert place.runs() == {"write-one": times, "read": times}


def test_a_record_that_a_crash_has_cut_is_removed(place: Place) -> None:
    with place.batch() as batch:
        results = [batch.function(draw, place.ran, f"draw{number}").get(60) for number in range(4)]
    os.truncate(place.journal, place.journal.stat().st_size - 1)
    with pytest.warns(UserWarning, match="no whole record: removed"), place.batch() as batch:
        again = [batch.function(draw, place.ran, f"draw{number}").get(60) for number in range(4)]
    assert again[:3] == results[:3]
    assert again[3] != results[3]
    with place.batch() as batch:
        assert [batch.function(draw, place.ran, f"draw{number}").get(60) for number in range(4)] == again


@pytest.mark.parametrize("seed", range(10))
def test_a_journal_with_changed_bytes_is_never_misread(place: Place, seed: int) -> None:
    with place.batch() as batch:
        results = [batch.function(draw, place.ran, f"draw{number}").get(60) for number in range(4)]
    rest = bytearray(place.journal.read_bytes())
    rng = random.Random(seed)
    at = rng.randrange(len(b"dragon journal 1\n"), len(rest))
    rest[at] ^= rng.randrange(1, 256)
    place.journal.write_bytes(rest)
    with pytest.warns(UserWarning, match="are damaged|no whole record"), place.batch() as batch:
        again = [batch.function(draw, place.ran, f"draw{number}").get(60) for number in range(4)]
    changed = [number for number in range(4) if again[number] != results[number]]
    assert changed
    assert place.runs() == {f"draw{number}": 2 if number in changed else 1 for number in range(4)}


def test_a_journal_in_use_and_other_files_are_refused(place: Place) -> None:
    with place.batch(), pytest.raises(BatchError, match="in use by another batch"):
        place.batch()
    place.journal.write_text("my thesis")
    with pytest.raises(BatchError, match="no journal of a batch"):
        place.batch()
    assert place.journal.read_text() == "my thesis"
    place.journal.chmod(0o666)
    with pytest.raises(BatchError, match="may be written by other users"):
        place.batch()
    place.journal.unlink()
    os.mkfifo(place.journal)
    with pytest.raises(BatchError, match="no regular file"):
        place.batch()


_SWEEP = """
    import sys, time
    from dragon.workflows.batch import Batch

    def work(number):
        time.sleep(0.02)
        with open("ran", "a") as file:
            file.write(f"{number}\\n")
        return number

    if __name__ == "__main__":
        with Batch(workers_per_node=2, journal="sweep.journal") as batch:
            print(sum(task.get() for task in [batch.function(work, number) for number in range(200)]))
"""


def test_a_program_that_is_killed_goes_on_where_it_was_with_any_number_of_nodes(site: Site) -> None:
    program = site.write(_SWEEP)
    ran = site.folder / "ran"
    for nodes in ("1", "2", "1"):
        before = len(ran.read_text().split()) if ran.exists() else 0
        running = site.start(sys.executable, "-m", "dragon", "--nodes", nodes, program, start_new_session=True)
        while not ran.exists() or len(ran.read_text().split()) < before + 20:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        while site.processes():
            time.sleep(0.05)
    done = site.dragon(program)
    assert (done.returncode, done.stdout) == (0, f"{sum(range(200))}\n"), done.stderr
    counts = Counter(ran.read_text().split())
    assert len(counts) == 200
    # What was under way at a kill ran again; each kill can have met at most the tasks of four workers and their notes.
    assert sum(times - 1 for times in counts.values()) <= 3 * 8


def test_a_full_disk_ends_the_journal_and_not_the_batch(site: Site) -> None:
    program = site.write("""
        import resource, signal
        from dragon.workflows.batch import Batch

        if __name__ == "__main__":
            with Batch(workers_per_node=1, journal="run.journal") as batch:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
                print([len(batch.function(bytes, 3000 + number).get()) for number in range(3)])
    """)
    done = site.run(sys.executable, program)
    assert done.stdout == "[3000, 3001, 3002]\n"
    assert "takes no more results: [Errno 27] File too large" in done.stderr
