"""Tasks that ask for CPUs, GPUs, memory and nodes."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Site, described
from dragon.native.machine import cpu_count, current
from dragon.native.process import Process, ProcessTemplate
from dragon.workflows.batch import Batch
from dragon.workflows.batch.call import NEVER, Call, Kind
from dragon.workflows.batch.conditions import Demand
from dragon.workflows.batch.order import Entry, Places, State
from dragon.workflows.batch.resources import Allocator, NodeResources
from dragon.workflows.executor import DragonExecutor

MIB = 2**20
PROGRAM = """
    import os, signal, sys, time
    from dragon.native.machine import cpu_count, current
    from dragon.native.process import Process, ProcessTemplate
    from dragon.workflows.batch import Batch

    def meet(name, count):
        # Returns once so many tasks have been here, which then run at the same time.
        with open(name, "a") as file:
            file.write("x")
        while os.path.getsize(name) < count:
            time.sleep(0.01)

    def where(count=1):
        meet("where", count)
        return current().hostname, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OMP_NUM_THREADS")

    def begin_and_end(cpus, count):
        began = time.monotonic()
        meet(f"cpus {cpus}", count)
        time.sleep(0.05)
        return began, time.monotonic()

    def most_at_a_time(spans):
        events = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
        return max(sum(change for _, change in events[:end]) for end in range(1, len(events) + 1))

    def shell(command):
        return ProcessTemplate("sh", ["-c", command])
"""


def run(site: Site, body: str, *options: str) -> str:
    """Return the output of a program with what PROGRAM defines, on simulated nodes of 4 CPUs and 2 GPUs."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    program = site.write(PROGRAM)
    program.write_text(f"{program.read_text()}\nif __name__ == '__main__':\n{lines}")
    done = site.dragon("--nodes", "2", "--cpus", "4", "--gpus", "2", *options, program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_have_their_cpus_to_themselves(site: Site) -> None:
    out = run(
        site,
        """
with Batch() as batch:
    for cpus, count in ((1, 8), (2, 4), (3, 2), (4, 2)):
        spans = [batch.options(cpus=cpus).function(begin_and_end, cpus, count) for _ in range(16)]
        print(most_at_a_time([span.get(60) for span in spans]))
""",
    )
    assert [int(most) for most in out.split()] == [8, 4, 2, 2]


def test_tasks_and_the_processes_they_run_find_their_gpus_and_cpus(site: Site) -> None:
    out = run(
        site,
        """
with Batch() as batch:
    here, there = batch.topology().manager_hostnames
    found = [batch.options(gpus=1, on_node=there).function(where, 2) for _ in range(2)]
    print(sorted(one.get(60) for one in found) == [(there, "0", None), (there, "1", None)])
    print(batch.options(cpus=2, gpus=2, on_node=there).function(where).get(60) == (there, "0,1", "2"))
    print(batch.options(cpus=3, gpus=2).process(shell('test "$CUDA_VISIBLE_DEVICES-$OMP_NUM_THREADS" = 0,1-3')).get(60))
    print(batch.options(gpus=2).job([(2, shell('test "$CUDA_VISIBLE_DEVICES" = 0,1'))]).get(60))
    print(batch.function(where).get(60)[1:])
""",
    )
    assert out.split("\n") == ["True", "True", "0", "[0, 0]", "(None, None)", ""]


def test_tasks_that_were_sent_before_the_first_that_asks_for_something_run_once(site: Site) -> None:
    out = run(
        site,
        """
def note(number):
    time.sleep(0.01)
    with open("ran", "a") as file:
        print(number, file=file)

with Batch() as batch:
    tasks = [batch.function(note, number) for number in range(200)]
    batch.options(cpus=4).function(note, 200).get(60)
    batch.fence()
print(sorted(map(int, open("ran").read().split())) == list(range(201)))
""",
    )
    assert out == "True\n"


def take(size: int, seconds: float) -> int:
    data = b"x" * size
    time.sleep(seconds)
    return len(data)


def take_in_a_child(size: int) -> int:
    code = f"import time; data = b'x' * {size}; time.sleep(60)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_a_task_that_takes_more_memory_than_it_asked_for_is_ended() -> None:
    program = ProcessTemplate(sys.executable, ["-c", f"import time; data = b'x' * {200 * MIB}; time.sleep(60)"])
    with Batch(workers_per_node=1) as batch:
        options = batch.options(memory="100M")
        ended = [options.function(take, 200 * MIB, 60), options.function(take_in_a_child, 200 * MIB)]
        ended.append(options.process(program))
        right = options.function(take, 50 * MIB, 0.5)
        for task in ended:
            with pytest.raises(MemoryError, match=r"took [\d.]+ MiB of memory, and has asked for 100 MiB"):
                task.get(60)
        assert right.get(60) == 50 * MIB


def test_a_task_on_a_lost_node_is_run_elsewhere_unless_it_names_the_node(site: Site) -> None:
    out = run(
        site,
        """
def end_node(first):
    if current().hostname != first:
        os.kill(os.getppid(), signal.SIGKILL)  # the zygote of the node, with which the node ends
        time.sleep(1000)
    return "done"

with Batch() as batch:
    here, there = batch.topology().manager_hostnames
    lost = batch.options(cpus=4, on_node=there).function(end_node, here)
    moved = batch.options(cpus=4, retries=1).function(end_node, here)
    others = [batch.options(cpus=2).function(where) for _ in range(6)]
    bound = batch.options(cpus=2, on_node=there).function(where)
    print(moved.get(60), {other.get(60)[0] for other in others} <= {here, there})
    for task in (lost, bound):
        try:
            task.get(60)
        except Exception as error:
            print(type(error).__name__)
    try:
        batch.options(cpus=1, on_node=there).function(where)
    except ValueError as error:
        print(error)
""",
    )
    assert out.splitlines()[:3] == ["done True", "WorkerLostError", "BatchError"], out
    assert "no node of the batch is called" in out


def test_a_node_that_was_lost_before_the_first_task_that_asks_for_something_is_left_out(site: Site) -> None:
    out = run(
        site,
        """
def end_node(first):
    if current().hostname != first:
        os.kill(os.getppid(), signal.SIGKILL)  # the zygote of the node, with which the node ends
    time.sleep(0.2)

with Batch(workers_per_node=1) as batch:
    here, there = batch.topology().manager_hostnames
    for task in [batch.function(end_node, here) for _ in range(2)]:
        print(type(task.exception).__name__ if task._wait(True, 60) is None else "")
    time.sleep(1)
    print(batch.options(cpus=2).function(where).get(60)[0] == here)
    try:
        batch.options(on_node=there).function(where)
    except ValueError as error:
        print(error)
""",
    )
    assert sorted(out.splitlines()[:2]) == ["NoneType", "WorkerLostError"]
    assert out.splitlines()[2] == "True"
    assert "no node of the batch is called" in out


def test_a_task_that_is_being_cancelled_keeps_its_place_until_it_has_ended(site: Site) -> None:
    out = run(
        site,
        """
trap = "trap 'sleep 2; echo ended >> order; exit' TERM"
with Batch(scheduler_workers=1) as batch:
    first = batch.job([(1, shell(f"{trap}; echo begun >> order; while :; do sleep 0.1; done"))])
    while not os.path.exists("order"):
        time.sleep(0.05)
    first.cancel(timeout=0)
    batch.options(cpus=1).job([(1, shell("echo next >> order"))]).get(60)
    print(open("order").read().split())
""",
    )
    assert out == "['begun', 'ended', 'next']\n"


def test_workers_that_die_and_tasks_that_are_cancelled_give_back_what_they_had(site: Site) -> None:
    out = run(
        site,
        """
def die():
    os.kill(os.getpid(), signal.SIGKILL)

with Batch() as batch:
    for round in range(3):
        dying = [batch.options(cpus=4).function(die) for _ in range(2)]
        late = [batch.options(cpus=3, timeout=0.1).function(time.sleep, 100) for _ in range(2)]
        waiting = [batch.options(cpus=4, gpus=2).function(time.sleep, 100) for _ in range(4)]
        print([type(task.exception).__name__ for task in dying + late if task._wait(True, 60) is None])
        print(all(task.cancel(60) for task in waiting))
    print(len([batch.options(cpus=4, gpus=2).function(where).get(60) for _ in range(4)]))
""",
    )
    assert out.count("['WorkerLostError', 'WorkerLostError', 'TimeoutError', 'TimeoutError']\nTrue\n") == 3
    assert out.endswith("4\n")


def spans_of(executor: DragonExecutor, cpus: int) -> list[tuple[float, float]]:
    futures = [executor.options(cpus=cpus, retries=1).submit(begin_and_end) for _ in range(4)]
    return [future.result(60) for future in futures]


def begin_and_end() -> tuple[float, float]:
    began = time.monotonic()
    time.sleep(0.1)
    return began, time.monotonic()


def test_calls_of_an_executor_ask_for_cpus() -> None:
    with DragonExecutor(2) as executor:
        most = max(2, executor.submit(cpu_count).result(60))
        spans = sorted(spans_of(executor, most))
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        with pytest.raises(ValueError, match="needs 1000000 CPUs"):
            executor.options(cpus=1_000_000).submit(begin_and_end)


def submit_two(batch: Batch) -> None:
    cpus = batch.topology().workers_per_pool[0]
    assert batch.options(cpus=cpus).function(pow, 2, 5).get(60) == 32
    with pytest.raises(ValueError, match="needs 1000000 CPUs"):
        batch.options(cpus=1_000_000).function(pow, 2, 5).get(60)


def test_another_process_submits_tasks_that_ask_for_something() -> None:
    with Batch() as batch:
        process = Process(submit_two, (batch,))
        process.start()
        assert process.join() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus": 10_000}, r"needs 10000 CPUs, and .* has \d+ CPUs"),
        ({"gpus": 999}, "needs 1 CPU, 999 GPUs, and "),
        ({"memory": "100T"}, "needs 1 CPU, 100 TiB, and "),
        ({"on_node": "nowhere"}, "no node of the batch is called 'nowhere'; there is "),
        ({"cpus": 0}, "cpus must be at least 1, not 0"),
        ({"cpus": "4"}, "cpus must be a whole number, not '4'"),
        ({"memory": "much"}, "'much' is not a size"),
        ({"on_node": 1}, "on_node must be a host name, not 1"),
    ],
)
def test_what_can_never_be_had_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with Batch(workers_per_node=1) as batch, pytest.raises((TypeError, ValueError), match=message):
        batch.options(**options).function(current)


def entry_of(number: int, demand: Demand, ranks: int) -> Entry:
    kind = Kind.JOB if ranks else Kind.FUNCTION
    call = Call(kind, b"", [], [], [], "", NEVER, (None, None), ranks or 1, demand=demand if any(demand) else None)
    return Entry((0, number), number, call)


demands = st.builds(Demand, st.integers(0, 4), st.integers(0, 2), st.just(0), st.sampled_from(["", "", "cn00"]))


@given(st.lists(st.tuples(demands, st.integers(0, 9)), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_no_node_gives_more_than_it_has_and_every_task_has_its_turn(
    tasks: list[tuple[Demand, int]], order: Any
) -> None:
    nodes = [described(0, host_name="cn00"), described(1, host_name="cn01")]
    allocator = Allocator([NodeResources(node, 4) for node in nodes], Places(8, None))
    waiting: list[int] = []
    for number, (demand, ranks) in enumerate(tasks):
        entry = entry_of(number, demand, ranks)
        if not allocator.refusal(entry):
            entry.state = State.READY
            allocator.wait(entry)
            waiting.append(number)
    running: list[Entry] = []
    while waiting or running:
        while (entry := allocator.next()) is not None:
            entry.state = State.SENT
            running.append(entry)
            waiting.remove(entry.number)
        for node in nodes:
            shares = [share for one in running for share in one.shares if share.host == node.host_name]
            for numbers, there in (
                ([cpu for share in shares for cpu in share.cpus], node.cpus),
                ([gpu for share in shares for gpu in share.gpus], node.gpus),
            ):
                assert len(numbers) == len(set(numbers))
                assert set(numbers) <= set(there)
        assert running, "a task waits, and nothing runs"
        ended = running.pop(order.randrange(len(running)))
        ended.state = State.ENDED
        allocator.leave(ended)


def test_small_tasks_do_not_keep_a_large_one_waiting() -> None:
    allocator = Allocator([NodeResources(described(0), 4), NodeResources(described(1), 4)], Places(8, None))
    entries = [entry_of(number, Demand(4 if number == 8 else 1), 0) for number in range(30)]
    for entry in entries:
        entry.state = State.READY
        allocator.wait(entry)
    running = list(iter(allocator.next, None))
    assert len(running) == 8
    turns = 0
    while entries[8] not in running:
        for ended in [next(entry for entry in running if entry.node == node) for node in (0, 1)]:
            running.remove(ended)
            allocator.leave(ended)
        running += iter(allocator.next, None)
        turns += 1
    assert turns == 4  # as long as the four tasks take that ran on its node
    assert len(running) == 5  # on the other node small ones ran meanwhile


def test_no_more_jobs_run_at_a_time_than_may_and_tasks_pass_them() -> None:
    allocator = Allocator([NodeResources(described(0), 4)], Places(4, 1))
    entries = [entry_of(number, Demand(1), ranks) for number, ranks in enumerate((1, 1, 0, 0))]
    for entry in entries:
        entry.state = State.READY
        allocator.wait(entry)
    assert list(iter(allocator.next, None)) == [entries[0], *entries[2:]]
    allocator.leave(entries[0])
    assert allocator.next() is entries[1]
