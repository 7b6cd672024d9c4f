"""Payloads outside the link: which ones are sent there, and the order of frames whose payloads are
late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ends import LARGE, Ends, run, told

from dragon.agent.wire import ucx as fabric
from dragon.agent.wire.handshake import Greeting


class Post:
    """A fabric of both ends that delivers payloads on request."""

    def __init__(self, reachable: bool = True, kind: str = "post") -> None:
        self.reachable, self.kind = reachable, kind
        self.sent: dict[int, bytes] = {}
        self.expected: dict[int, tuple[memoryview, Callable[[], None]]] = {}
        self.lanes: list[PostLane] = []

    def greet(self) -> Greeting:
        return Greeting(self.kind, b"", 1000 * len(self.lanes))

    def lane(self, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> PostLane:
        self.lanes.append(PostLane(self, told.tag, heard.tag, lost))
        return self.lanes[-1]

    def deliver(self, latest: bool) -> None:
        """Deliver one payload that was sent and is expected."""
        both = sorted(self.sent.keys() & self.expected.keys())
        tag = both[-1 if latest else 0]
        memory, done = self.expected.pop(tag)
        memory[:] = self.sent.pop(tag)
        done()

    def deliver_all(self) -> None:
        """Deliver whatever was sent and is expected."""
        while self.sent.keys() & self.expected.keys():
            self.deliver(latest=False)

    def close(self) -> None:
        return


class PostLane:
    def __init__(self, post: Post, next_in: int, next_out: int, lost: Callable[[str], None]) -> None:
        self.post, self.next_in, self.next_out, self.lost = post, next_in, next_out, lost
        self.closed = False

    def open(self) -> bool:
        return self.post.reachable

    def send(self, payload: memoryview) -> None:
        self.post.sent[self.next_out] = bytes(payload)
        self.next_out += 1

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        self.post.expected[self.next_in] = memoryview(memory), done
        self.next_in += 1

    def close(self) -> None:
        self.closed = True


def test_requests_are_handled_in_order_even_if_payloads_arrive_out_of_order() -> None:
    post = Post()

    async def test(ends: Ends) -> None:
        await ends.echo()
        sizes = [10, LARGE, 20, LARGE + 1, 100_000, LARGE - 1, LARGE + 2]
        answers = [ends.ask(number, b"m" * size) for number, size in enumerate(sizes)]
        handled = ends.log[0]
        while len(handled) < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert [size for _, _, size in handled[1:]] == [10]
        while not all(answer.done() for answer in answers):
            post.deliver_all()
            await asyncio.sleep(0.001)
        assert [size for _, _, size in handled[1:]] == sizes
        assert [bytes(told(await answer)[1]) for answer in answers] == [b"m" * size for size in sizes]

    run(test, lambda: (post, post))


def test_payloads_without_a_fabric_on_the_other_node_use_the_link() -> None:
    post = Post()

    async def test(ends: Ends) -> None:
        for _ in range(3):
            _, payload = await ends.echo(None, bytes(2 * LARGE))
            assert len(memoryview(payload)) == 2 * LARGE
        assert (post.sent, post.lanes) == ({}, [])

    run(test, lambda: (post, None))


def test_payloads_to_a_node_that_the_fabric_cannot_reach_use_the_link() -> None:
    post = Post(reachable=False)

    async def test(ends: Ends) -> None:
        await ends.echo()
        _, payload = await ends.echo(None, bytes(2 * LARGE))
        assert len(memoryview(payload)) == 2 * LARGE

    run(test, lambda: (post, post))


def test_payloads_between_agents_with_different_fabrics_use_the_link() -> None:
    posts = Post(), Post(kind="pigeons")

    async def test(ends: Ends) -> None:
        for _ in range(3):
            _, payload = await ends.echo(None, bytes(2 * LARGE))
            assert len(memoryview(payload)) == 2 * LARGE
        assert all(post.lanes == [] for post in posts)

    run(test, lambda: posts)


def test_what_a_failed_lane_lost_is_sent_over_the_next_one() -> None:
    post = Post()

    async def test(ends: Ends) -> None:
        await ends.echo()
        future = ends.ask({"sent": "once"}, bytes(2 * LARGE))
        while not post.sent:
            await asyncio.sleep(0.001)
        failed = list(post.lanes)
        for lane in failed:
            lane.lost("UCX lost a payload: the cable was pulled")
        while not future.done():
            post.deliver_all()
            await asyncio.sleep(0.001)
        assert told(await future)[0] == {"sent": "once"}
        assert len(ends.log[0]) == 2  # with the first one
        assert all(lane.closed for lane in failed)
        assert not ends.broken.is_set()

    run(test, lambda: (post, post))


def test_a_lane_that_fails_again_and_again_is_replaced_by_the_link() -> None:
    post = Post()

    async def test(ends: Ends) -> None:
        await ends.echo()
        future = ends.ask(None, bytes(2 * LARGE))
        while not future.done():
            for lane in [lane for lane in post.lanes if not lane.closed]:
                lane.lost("UCX lost a payload: the cable was pulled")
            await asyncio.sleep(0.01)
        assert len(memoryview((await future)[1])) == 2 * LARGE

    run(test, lambda: (post, post))


def device(folder: Path, name: str, *states: str) -> None:
    for port, state in enumerate(states, 1):
        place = folder / name / "ports" / str(port)
        place.mkdir(parents=True)
        (place / "state").write_text(state + "\n")


def test_active_devices_have_an_active_port(tmp_path: Path) -> None:
    device(tmp_path, "mlx5_0", "1: DOWN")
    device(tmp_path, "mlx5_1", "1: DOWN", "4: ACTIVE")
    device(tmp_path, "mlx5_2", "4: ACTIVE", "4: ACTIVE")
    device(tmp_path, "mlx5_3", "2: INIT")
    assert fabric.active_devices(tmp_path) == ["mlx5_1", "mlx5_2"]
    assert fabric.active_devices(tmp_path / "none") == []


def test_there_is_no_fabric_without_a_device_or_if_tcp_was_chosen(tmp_path: Path) -> None:
    assert fabric.open_fabric("", "here", tmp_path) is None
    device(tmp_path, "mlx5_0", "4: ACTIVE")
    assert fabric.open_fabric("tcp", "here", tmp_path) is None
