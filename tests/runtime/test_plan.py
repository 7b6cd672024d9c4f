"""The plan of placements, and its output."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragon
from conftest import SetNodes, described
from dragon.cli.plan import print_plan
from dragon.globalservices import process as process_service
from dragon.globalservices import process as services
from dragon.infrastructure.messages import Spawn
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.mpbridge import popen
from dragon.mpbridge.context import DragonContext
from dragon.native import pool, process
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.runtime.placement import PlanRecord, name_of, read_plan
from dragon.runtime.protocol.groups import CreateGroup
from dragon.runtime.run import this_run
from dragon.runtime.spawning import Started

HOST_NAME = Policy.Placement.HOST_NAME


def work() -> None:
    time.sleep(0.001)


class Unstarted(Started):
    """A substitute for a requested process; it ends when it gets a signal."""

    def __init__(self, request: Spawn, descriptors: Any = ()) -> None:
        self.request, self.puid, self.name, self.pid = request, request.puid, request.name, 1
        self._pidfd = os.eventfd(0)
        self.code: int | None = None

    def wait(self, timeout: float | None = None) -> int | None:
        return self.code

    def signal(self, number: int) -> None:
        self.code = -number
        os.eventfd_write(self.sentinel, 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Unstarted]:
    """The processes that were requested but not started."""
    result: list[Unstarted] = []

    def start(request: Spawn, descriptors: Any = ()) -> Unstarted:
        result.append(Unstarted(request, descriptors))
        return result[-1]

    for module in (process, popen, services):
        monkeypatch.setattr(module, "start", start)
    return result


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, set_nodes: SetNodes) -> Callable[[], list[PlanRecord]]:
    """A function that returns the recorded placements on two nodes."""
    set_nodes(described(0), described(1, cpus=32, real_cpus=[0, 1]))
    monkeypatch.setenv("DRAGON_PLAN", str(tmp_path / "plan"))
    return lambda: read_plan(tmp_path / "plan")


def test_a_group_is_planned_in_the_order_of_its_ranks(plan: Callable[[], list[PlanRecord]]) -> None:
    group = ProcessGroup(name="sim")
    group.add_process(3, ProcessTemplate(work))
    group.add_process(1, ProcessTemplate(work, policy=Policy(placement=HOST_NAME, host_name="node0", gpu_affinity=[3])))
    group.add_process(2, ProcessTemplate("/bin/true", policy=Policy(cpu_affinity=[1])))
    group.init()
    group.close()
    assert [record.name for record in plan()] == [f"sim-{rank}" for rank in range(6)]
    assert [record.node for record in plan()] == [0, 1, 0, 0, 1, 0]
    assert [record.target for record in plan()] == ["work"] * 4 + ["true"] * 2
    assert plan()[3].gpus == {"CUDA_VISIBLE_DEVICES": "3"}
    assert plan()[4].cpus == [1]
    assert {record.policy for record in plan()} == {"global", "template"}


@pytest.mark.usefixtures("plan")
def test_members_with_the_same_placement_are_requested_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CreateGroup] = []

    def ask(request: CreateGroup, _: list[int]) -> None:
        asked.append(request)
        raise KeyError

    monkeypatch.setattr("dragon.native.process_group.ask", ask)
    group = ProcessGroup(policy=Policy(distribution=Policy.Distribution.BLOCK, cpu_affinity=[0, 3]))
    group.add_process(6, ProcessTemplate(work, env={"A": "1"}))
    with pytest.raises(KeyError):
        group.init()
    assert asked[0].places == [(4, 0, 0, [0, 3], {}), (2, 0, 1, [0, 1], {})]
    assert len(asked[0].templates) == 1


def test_environment_variables_of_the_user_are_kept(
    plan: Callable[[], list[PlanRecord]], started: list[Unstarted]
) -> None:
    policy = Policy(placement=HOST_NAME, host_name="node1", gpu_affinity=[1, 2], cpu_affinity=[30, 31])
    Process(work, env={"CUDA_VISIBLE_DEVICES": "mine"}, policy=policy).start()
    one = Process(work, policy=policy)
    one.start()
    assert [s.request.environment["CUDA_VISIBLE_DEVICES"] for s in started] == ["mine", "1,2"]
    assert [(s.request.node, s.request.cpus) for s in started] == [(1, [0, 1])] * 2
    assert (one.node, one.h_uid) == (1, 101)
    assert [record.puid for record in plan()] == [s.puid for s in started]


@pytest.mark.usefixtures("plan")
def test_an_executable_is_placed_on_the_node_of_its_policy(started: list[Unstarted]) -> None:
    with Policy(host_name="node1"), pytest.raises(process_service.ProcessError):
        process_service.create("/bin/true", ".", [], None)  # nobody can find what was not started
    assert started[0].request.node == 1


@pytest.mark.parametrize("kind", ["native", "multiprocessing"])
def test_the_workers_of_a_pool_are_placed_round_robin(
    plan: Callable[[], list[PlanRecord]], started: list[Unstarted], kind: str
) -> None:
    made = pool.Pool(5) if kind == "native" else DragonContext().Pool(5)
    assert [s.request.node for s in started] == [0, 1, 0, 1, 0]
    started[3].signal(9)
    deadline = time.monotonic() + 10
    while len(started) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert started[5].request.node == 1  # in the place of the one that ended
    made.terminate()
    made.join()
    assert [record.rank for record in plan()] == [0, 1, 2, 3, 4, 3]
    assert len({record.group for record in plan()}) == 1


def test_a_pool_with_a_policy_for_each_gpu_has_a_worker_on_each(
    plan: Callable[[], list[PlanRecord]], started: list[Unstarted]
) -> None:
    made = pool.Pool(policy=dragon.System().gpu_policies(), processes_per_policy=1)
    made.terminate()
    made.join()
    assert [(s.request.node, s.request.environment["CUDA_VISIBLE_DEVICES"]) for s in started] == [
        (node, str(gpu)) for node in (0, 1) for gpu in range(4)
    ]


@pytest.mark.usefixtures("plan", "started")
def test_a_pool_gives_one_warning_about_all_missing_devices() -> None:
    policies = [Policy(host_name=f"node{node}", gpu_affinity=[gpu]) for node in (0, 1) for gpu in (4, 5)]
    with pytest.warns(RuntimeWarning, match=r"node0\S+, node1\S+ have no GPUs 4, 5 ") as caught:
        made = pool.Pool(policy=policies, processes_per_policy=1)
    assert len(caught) == 1
    made.terminate()
    made.join()


@pytest.mark.usefixtures("plan")
def test_a_process_that_inherits_an_open_file_stays_on_its_node(
    started: list[Unstarted], monkeypatch: pytest.MonkeyPatch
) -> None:
    from multiprocessing import reduction

    monkeypatch.setattr("dragon.runtime.placement._singles", iter([1, 1]))
    reading, writing = os.pipe()

    class WithFile:
        def __reduce__(self) -> Any:
            return os.fstat, (reduction.DupFd(reading).index,)

    context = DragonContext()
    context.Process(target=work).start()
    context.Process(target=work, args=(WithFile(),)).start()
    with Policy(host_name="node1"), pytest.raises(PolicyError, match="inherits open files"):
        context.Process(target=work, args=(WithFile(),)).start()
    os.close(reading)
    os.close(writing)
    assert [s.request.node for s in started] == [1, 0]


def test_targets_have_the_names_of_functions_and_executables() -> None:
    assert name_of(functools.partial(functools.partial(work))) == "work"
    assert name_of("/opt/bin/solve") == "solve"
    assert name_of(Unstarted.wait) == "Unstarted.wait"


RECORDS = [
    PlanRecord(name="sim-0", target="work", host_name="n1", node=1, cpus=[0, 1, 2, 5], rank=0, group="sim"),
    PlanRecord(name="head", target="a.py", host_name="n0", node=0, gpus={"CUDA_VISIBLE_DEVICES": "3"}, policy="thread"),
]


def test_the_plan_is_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(RECORDS, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "host  process  target  CPUs    GPUs                    chosen by",
        "n0    head     a.py    all     CUDA_VISIBLE_DEVICES=3  thread",
        "n1    sim[0]   work    0-2, 5  -                       global",
    ]


def test_the_plan_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(RECORDS, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["host_name"], first["cpus"], first["rank"]) == ("n1", [0, 1, 2, 5], 0)
    assert (second["gpus"], second["rank"]) == ({"CUDA_VISIBLE_DEVICES": "3"}, None)


def test_placements_are_recorded_only_on_request(set_nodes: SetNodes, started: list[Unstarted], tmp_path: Path) -> None:
    set_nodes(described(0))
    Process(work).start()
    assert len(started) == 1
    assert read_plan(tmp_path / "plan") == []
    assert not (this_run().folder / "plan").exists()
