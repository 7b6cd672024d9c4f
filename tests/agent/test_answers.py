"""The replies to writes that a node keeps for clients that repeat a request."""

from __future__ import annotations

from dragon.agent.shards.answers import Answered, Answers
from dragon.shards.operations import Result

SHARD = ("dictionary", 0)


def answered(size: int) -> Answered:
    return Answered(SHARD, Result(b"value", [bytes(size)]), everywhere=True)


def test_kept_replies_to_ended_processes_use_bounded_memory() -> None:
    answers = Answers()
    for number in range(1000):
        answers.add((b"%d" % number, 1, 0), answered(2**20))
    kept = sum(len(buffers[0]) for _, _, some in answers.of(SHARD) for _, _, buffers, _ in some if buffers)
    assert 32 * 2**20 < kept <= 96 * 2**20
    for number in (0, 999):
        found = answers.find((b"%d" % number, 1, 0))
        assert found is not None
        assert found.forgotten == (number == 0)
        assert bool(found.result.buffers) == (number == 999)


def test_kept_replies_that_a_new_replica_receives_use_bounded_memory() -> None:
    first, second = Answers(), Answers()
    for number in range(60):
        first.add((b"%d" % number, 1, 0), answered(2**20))
    for _ in range(10):
        told = [(name + bytes(1), settled, some) for name, settled, some in first.of(SHARD)]
        second.take_over(SHARD, told)
        first = Answers()
        first.take_over(SHARD, told)
    kept = sum(len(buffers[0]) for _, _, some in second.of(SHARD) for _, _, buffers, _ in some if buffers)
    assert kept <= 96 * 2**20


def test_replies_that_are_not_yet_on_all_replicas_are_kept() -> None:
    answers = Answers()
    awaited = answered(2**20)
    awaited.everywhere = False
    answers.add((b"who waits", 1, 0), awaited)
    for number in range(1000):
        answers.add((b"%d" % number, 1, 0), answered(2**20))
    assert awaited.result.buffers
