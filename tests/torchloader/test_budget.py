"""The division of a node's cores between loaders, also when one of them ends or is idle."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys

import pytest

from dragon.claims import Claim
from dragon.cores import usable_cores
from dragon.runtime.folder import find_runs
from torchloader.allocation.budget import CORES, Budget, cores_of_node, fair_share

CLAIMING = """
import sys
from torchloader.allocation.budget import Budget

budget = Budget(4.0)
print(budget.ask(8, 1.0, 0.01), flush=True)
sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("own_folders")


class Time:
    """A clock that tests can set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def claim() -> Claim:
    return Claim("loading_cores")


@pytest.mark.parametrize(
    ("wanted", "others", "share"),
    [
        (2.0, [], 2.0),
        (8.0, [], 4.0),
        (8.0, [8.0], 2.0),
        (8.0, [1.0], 3.0),
        (1.0, [8.0], 1.0),
        (8.0, [8.0, 0.5, 8.0], 3.5 / 3),
        (0.5, [8.0, 8.0, 8.0], 0.5),
    ],
)
def test_the_fair_share_of_a_loader(wanted: float, others: list[float], share: float) -> None:
    assert fair_share(wanted, others, 4.0) == pytest.approx(share)


def test_fair_shares_use_all_requested_cores_and_no_more() -> None:
    drawn = random.Random(3)
    for _ in range(1000):
        wishes = [drawn.uniform(0, 4) for _ in range(drawn.randint(1, 8))]
        cores = drawn.uniform(0.5, 8)
        total = sum(
            fair_share(wish, wishes[:number] + wishes[number + 1 :], cores) for number, wish in enumerate(wishes)
        )
        assert total == pytest.approx(min(cores, sum(wishes)))


def test_a_single_loader_gets_the_workers_that_the_cores_can_run() -> None:
    budget = Budget(4.0)
    assert budget.ask(16, 1.0, 0.01) == 4
    assert budget.ask(16, 0.5, 0.01) == 9  # eight would compute on four cores on average, often on fewer
    assert budget.ask(16, 1.02, 0.01) == 3 + 1  # what is measured is not exact
    assert budget.ask(3, 1.0, 0.01) == 3
    budget.close()


def test_waiting_workers_count_a_little() -> None:
    budget = Budget(4.0)
    assert budget.ask(20, 0.01, 0.01) == 20
    assert budget.ask(200, 0.01, 0.01) == 81
    budget.close()


def test_every_loader_gets_at_least_one_worker() -> None:
    budgets = [Budget(0.5) for _ in range(3)]
    assert [budget.ask(8, 1.0, 0.01) for budget in budgets] == [1, 1, 1]
    for budget in budgets:
        budget.close()


def test_two_loaders_reach_a_fair_share_without_exceeding_the_cores() -> None:
    one, two = Budget(8.0), Budget(8.0)
    assert one.ask(16, 1.0, 0.01) == 8
    assert two.ask(16, 1.0, 0.01) == 1  # until the other has given it up
    assert one.renew() == 4
    assert two.renew() == 4
    assert (one.renew(), two.renew()) == (4, 4)
    one.close()
    assert two.renew() == 8
    two.close()
    assert find_runs() == []


def test_cores_that_one_loader_does_not_need_go_to_another() -> None:
    one, two = Budget(8.0), Budget(8.0)
    assert one.ask(2, 1.0, 0.01) == 2
    assert two.ask(16, 1.0, 0.01) == 6
    one.close()
    two.close()


def test_the_share_of_an_idle_loader_is_released() -> None:
    clock = Time()
    resting, working = Budget(8.0, claim, clock), Budget(8.0, claim, clock)
    resting.ask(8, 1.0, 0.1)
    assert working.ask(8, 1.0, 0.1) == 1
    clock.now += 60
    assert working.renew() == 8
    assert resting.is_due
    assert resting.renew() == 1  # when it comes back
    assert working.renew() == 4
    resting.close()
    working.close()


def test_a_loader_with_a_slow_batch_is_not_idle() -> None:
    clock = Time()
    slow, other = Budget(8.0, claim, clock), Budget(8.0, claim, clock)
    slow.ask(4, 1.0, 30.0)
    clock.now += 60
    assert other.ask(8, 1.0, 0.1) == 4
    slow.close()
    other.close()


def test_the_share_of_a_killed_program_is_released_at_once() -> None:
    budget = Budget(4.0)
    with subprocess.Popen([sys.executable, "-c", CLAIMING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"4\n"
        assert budget.ask(4, 1.0, 0.01) == 1
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert budget.renew() == 4
    budget.close()
    assert find_runs() == []


def test_a_loader_that_cannot_claim_cores_continues_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Claim:
        raise OSError(28, "No space left on device", "/tmp")

    budget = Budget(4.0, fails)
    with caplog.at_level(logging.WARNING):
        assert budget.ask(8, 1.0, 0.01) == 4
        assert budget.renew() == 4
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("this loader shares the cores of the node with no other one, as it cannot claim any: ")
    assert "No space left on device" in told


def test_a_variable_sets_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CORES, raising=False)
    assert cores_of_node() == usable_cores()
    monkeypatch.setenv(CORES, "2.5")
    assert cores_of_node() == 2.5


@pytest.mark.parametrize("text", ["0", "-1", "many", "inf", "nan"])
def test_an_invalid_number_of_cores_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(CORES, text)
    with pytest.raises(ValueError, match=f"TORCHLOADER_CORES must be a positive number of cores, not '{text}'"):
        cores_of_node()


def test_a_forked_child_does_not_release_the_share_of_its_parent() -> None:
    mine, other = Budget(4.0), Budget(4.0)
    assert mine.ask(3, 1.0, 0.01) == 3
    pid = os.fork()
    if pid == 0:
        mine.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert other.ask(4, 1.0, 0.01) == 1
    mine.close()
    other.close()


def test_a_budget_without_sharing_claims_no_cores() -> None:
    one, two = Budget(4.0, None), Budget(4.0, None)
    assert one.ask(8, 1.0, 0.01) == two.ask(8, 1.0, 0.01) == 4
    assert find_runs() == []
    one.close()
