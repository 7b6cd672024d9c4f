"""Cores of a node shared between a run and loading workers of programs that the scheduler did not start."""

from __future__ import annotations

import time

import msgspec
import pytest
from clusters import Cluster
from hypothesis import given
from hypothesis import strategies as st
from test_scheduler import HUNGRY, MODEST, decide, queued, running

from conftest import Site
from dragon.claims import Claim as OthersClaim
from torchloader.allocation.budget import Lease
from torchloader.scheduling.application import Action, Cause, Launch, Node, Pause, Resize, cores_of
from torchloader.service.lending import Lender, Share
from torchloader.service.messages import Claim, Granted

DEVICES = (0, 1, 2, 3)


def lent(cores: int, number: int) -> dict[str, Node]:
    return {"a": Node(cores, DEVICES, lent=number)}


def test_workers_are_removed_from_lent_cores_and_added_when_the_cores_are_returned() -> None:
    busy, alone = running("job", 16, {"a": (0,)}), running("job", 8, {"a": (0,)})
    assert decide(busy, nodes=lent(16, 8), cause=Cause.LENT) == [Resize("job", 16, 8, "cores lent")]
    assert decide(alone, nodes=lent(16, 8), cause=Cause.LENT) == []
    assert decide(alone, nodes=lent(16, 0), cause=Cause.LENT) == [Resize("job", 8, 16, "cores lent")]


def test_an_application_has_its_minimum_of_workers_on_lent_cores() -> None:
    nodes = lent(8, 7)
    assert decide(running("job", 4, {"a": (0, 1)}, minimum=3), nodes=nodes) == [Resize("job", 4, 3, "arrival")]
    assert decide(queued("new", devices=2, minimum=3), nodes=nodes) == [Launch("new", {"a": (0, 1)}, 3, "arrival")]


def test_workers_that_may_run_anywhere_move_from_a_lent_node_to_another() -> None:
    nodes = {"a": Node(8, DEVICES, lent=6), "b": Node(8, ())}
    (resize,) = decide(running("job", 8, {"a": (0,)}), nodes=nodes, anywhere=True)
    assert resize == Resize("job", 8, 10, "arrival", {"a": {"b": 8}})


@given(
    number=st.integers(0, 16),
    workers=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    modest=st.booleans(),
    fixed=st.booleans(),
)
def test_running_applications_keep_their_minimum_and_use_the_remaining_cores(
    number: int, workers: list[int], modest: bool, fixed: bool
) -> None:
    curve, moved = (MODEST if modest else HUNGRY), (99.0 if fixed else None)
    jobs = [running(f"j{n}", each, {"a": (n,)}, curve, moved=moved) for n, each in enumerate(workers)]
    actions: list[Action] = decide(*jobs, nodes=lent(16, number), cause=Cause.LENT, interval=2.0)
    assert not any(isinstance(action, Pause) for action in actions)
    now = {job.spec.name: job.workers for job in jobs}
    now |= {action.name: action.workers for action in actions if isinstance(action, Resize)}
    assert min(now.values()) >= 1
    used = sum(cores_of({"a": (0,)}, each, {})["a"] for each in now.values())
    assert used <= max(16 - number, sum(workers) if fixed else len(workers))


@pytest.mark.usefixtures("own_folders")
def test_a_node_grants_the_run_its_fair_share() -> None:
    share, other = Share("a"), OthersClaim("loading_cores")
    assert share.claim(Claim(8, 8)) == Granted("a", Claim(8, 8), 8)
    assert share.news() is None
    other.settle(lambda _: _lease(wanted=6.0, held=0.0))
    assert _next(share) == Granted("a", Claim(8, 8), 4)
    other.close()
    assert _next(share) == Granted("a", Claim(8, 8), 8)
    assert share.claim(Claim(0, 8)) == Granted("a", Claim(0, 8), 0)
    assert OthersClaim("loading_cores").settle(lambda others: str(others).encode() if others else b"none")


@pytest.mark.usefixtures("own_folders")
def test_all_cores_are_granted_while_another_program_decides() -> None:
    share, other, found = Share("a"), OthersClaim("loading_cores"), []

    def decide(others: list[bytes]) -> bytes:
        found.append(share.claim(Claim(8, 8)))
        return _lease(wanted=6.0, held=0.0)

    assert other.settle(decide)
    assert found == [Granted("a", Claim(8, 8), 8)]
    assert _next(share) == Granted("a", Claim(8, 8), 4)


def test_the_master_lends_the_cores_that_its_latest_claim_was_not_granted() -> None:
    nodes, lender = lent(8, 0), Lender(simulated=False)
    assert dict(lender.claims(nodes, loads=False)) == {}
    assert dict(lender.claims(nodes, loads=True)) == {"a": Claim(8, 8)}
    assert dict(lender.claims(nodes, loads=True)) == {}
    assert lender.lent("a") == 0
    assert not lender.granted(Granted("a", Claim(0, 8), 0))  # the reply to an earlier claim
    assert lender.granted(Granted("a", Claim(8, 8), 5))
    assert lender.lent("a") == 3
    lender.forget("a")
    assert lender.lent("a") == 0


def test_simulated_nodes_lend_nothing() -> None:
    assert dict(Lender(simulated=True).claims(lent(8, 0), loads=True)) == {}


def test_a_run_shares_its_cores_with_another_program_and_takes_them_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", site.environment["XDG_RUNTIME_DIR"])
    other, cluster = OthersClaim("loading_cores"), Cluster(site)
    try:
        cluster.start(cluster.job("job", 100_000, 0.05, 0.01), options=("--device", "cpu", "--cores", "8"))
        cluster.until(lambda: _workers(cluster) == 8)

        def is_shared() -> bool:
            other.settle(lambda _: _lease(wanted=4.0, held=0.0))
            return _workers(cluster) == 4

        cluster.until(is_shared)
        assert "4 of 8 cores load, 4 for other programs" in cluster.command("status").stdout
        other.close()
        cluster.until(lambda: _workers(cluster) == 8)
    finally:
        other.close()
        cluster.close()


def _lease(wanted: float, held: float) -> bytes:
    return msgspec.json.encode(Lease(wanted, held, time.monotonic() + 5))


def _next(share: Share) -> Granted:
    end = time.monotonic() + 30
    while (news := share.news()) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    return news


def _workers(cluster: Cluster) -> int | None:
    """Return the workers per device that the job has, from the event log."""
    found = [event["details"]["workers"] for event in cluster.events() if "workers" in event["details"]]
    return found[-1] if found and cluster.states("job")[-1] == "running" else None
