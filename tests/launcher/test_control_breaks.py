"""A control connection that breaks is replaced, and nothing that either side sent is lost."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meeting import Meeting, asynchronously

from dragon.control import NONCE_SIZE, Challenge, Control, JoinError, Refused, Resume, proof
from dragon.infrastructure.messages import decoder_of
from dragon.runtime.protocol.agents import Input, Wrote
from peers.connections import break_connections

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["agent", "front end"]), st.sampled_from([0, 1, 5_000, 300_000])),
        st.tuples(st.sampled_from(["agent", "front end"]), st.just(0)),
        st.tuples(st.sampled_from(["break", "pause"]), st.just(0)),
    ),
    max_size=60,
)


decode = decoder_of(Input | Wrote).decode


class Ends:
    """The two ends of the control connection of a run of one node, and what each has received."""

    async def open(self) -> Ends:
        self.meeting = Meeting("a")
        joining = asyncio.ensure_future(self.meeting.join("a"))
        await self.meeting.gather(20)
        self.meeting.announce({})
        _, self.agent = await joining
        front_end = self.meeting.controls[0]
        assert front_end is not None
        self.front_end = front_end
        self.at_agent: list[Input | Wrote] = []
        self.at_front_end: list[Input | Wrote] = []
        self.lost: list[str] = []
        self.agent.serve(lambda body: self.at_agent.append(decode(body)))
        self.front_end.serve(lambda body: self.at_front_end.append(decode(body)))
        self.agent.on_lost = self.front_end.on_lost = self.lost.append
        return self

    def break_connection(self) -> None:
        """Break the connection, in both directions."""
        break_connections([os.getpid()])

    async def close(self) -> None:
        self.agent.close()
        await self.meeting.end()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_whatever_is_sent_arrives_once_and_in_order_while_the_connection_breaks(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        ends = await Ends().open()
        of_agent: list[Input | Wrote] = []
        of_front_end: list[Input | Wrote] = []
        for number, (what, size) in enumerate(steps):
            match what:
                case "agent":
                    of_agent.append(Wrote(number, bytes(size)))
                    ends.agent.send(of_agent[-1])
                case "front end":
                    of_front_end.append(Input(bytes([number]) + bytes(size)))
                    ends.front_end.send(of_front_end[-1])
                case "break":
                    ends.break_connection()
                case _:
                    await asyncio.sleep(0.002)
        while len(ends.at_agent) < len(of_front_end) or len(ends.at_front_end) < len(of_agent):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)  # whatever was sent twice has arrived
        assert (ends.at_front_end, ends.at_agent, ends.lost) == (of_agent, of_front_end, [])
        await ends.close()

    asynchronously(run())


def test_what_was_acknowledged_is_not_kept() -> None:
    async def run() -> None:
        ends = await Ends().open()
        for number in range(1000):
            ends.agent.send(Wrote(1, b"x" * 1000))
            ends.front_end.send(Input(b"%d" % number))
        while len(ends.at_agent) < 1000 or len(ends.at_front_end) < 1000:
            await asyncio.sleep(0.001)
        while kept(ends.agent) > 64 or kept(ends.front_end) > 64:
            await asyncio.sleep(0.001)
        await ends.close()

    asynchronously(run())


def kept(control: Control) -> int:
    """Return the number of messages that a side would send again."""
    return len(control._sent)


def test_a_connection_that_nobody_takes_up_again_is_lost() -> None:
    async def run() -> None:
        ends = await Ends().open()
        ends.meeting.close()  # as if the front end had ended
        ends.break_connection()
        while len(ends.lost) < 2:
            await asyncio.sleep(0.01)
        assert any("broke and cannot be replaced" in reason for reason in ends.lost)
        assert any("Connection reset by peer" in reason for reason in ends.lost)
        await ends.close()

    asynchronously(run())


def test_a_node_whose_connection_breaks_while_it_waits_for_the_others_stays() -> None:
    async def run() -> None:
        meeting = Meeting("a", "b")
        joining = [asyncio.ensure_future(meeting.join("b"))]
        for _ in range(3):
            while meeting.controls[1] is None or meeting.controls[1].transport is None:
                await asyncio.sleep(0.001)
            break_connections([os.getpid()])
            await asyncio.sleep(0.02)
        joining.append(asyncio.ensure_future(meeting.join("a")))
        await meeting.gather(20)
        meeting.announce({})
        joined = await asyncio.gather(*joining)
        assert [membership.index for membership, _ in joined] == [1, 0]
        for _, control in joined:
            control.close()
        await meeting.end()

    asynchronously(run())


@pytest.mark.parametrize("step", range(10))
def test_a_node_whose_connection_breaks_while_it_joins_tries_again(step: int) -> None:
    async def run() -> None:
        meeting = Meeting("a", "b")
        joining = [asyncio.ensure_future(meeting.join(name)) for name in ("a", "b")]
        for _ in range(20):  # before, between and after the greetings
            await asyncio.sleep(0.001 + 0.0003 * step)
            break_connections([os.getpid()])
        await meeting.gather(20)
        meeting.announce({})
        joined = await asyncio.gather(*joining)
        assert [membership.index for membership, _ in joined] == [0, 1]
        for _, control in joined:
            control.close()
        await meeting.end()

    asynchronously(run())


async def resume(ends: Ends, secret: bytes, seat: int = 0) -> Control:
    """Ask to replace the connection of a node, whether it is broken or not."""
    caller = await ends.meeting.call()
    challenge = await caller.receive()
    assert isinstance(challenge, Challenge)
    nonce = os.urandom(NONCE_SIZE)
    caller.send(Resume(nonce, proof(secret, challenge.nonce, nonce), seat, 0))
    return caller


def test_a_node_that_was_declared_lost_is_refused() -> None:
    async def run() -> None:
        ends = await Ends().open()
        ends.front_end.abort("it is to be lost")
        for seat, name in ((0, "a"), (7, "this node")):
            caller = await resume(ends, ends.meeting.token.secret, seat)
            assert await caller.receive() == Refused(f"{name} does not belong to the run any more")
        await ends.close()

    asynchronously(run())


def test_a_caller_without_the_secret_replaces_nothing() -> None:
    async def run() -> None:
        ends = await Ends().open()
        caller = await resume(ends, b"another secret")
        with pytest.raises(ConnectionError):
            await caller.receive()
        ends.front_end.send(Input(b"still the same connection"))
        while not ends.at_agent:
            await asyncio.sleep(0.001)
        assert ends.lost == []
        await ends.close()

    asynchronously(run())


def test_a_node_that_joins_a_run_that_has_begun_is_refused() -> None:
    async def run() -> None:
        ends = await Ends().open()
        with pytest.raises(JoinError, match="the run has begun without this node"):
            await ends.meeting.join("b")
        await ends.close()

    asynchronously(run())
