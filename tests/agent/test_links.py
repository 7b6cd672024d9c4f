"""Connections between agents: requests, replies, messages, and faulty peers."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest
from ends import KEYS, LARGE, Answer, Ends, run, told
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragon.agent.wire.handshake import Hello, Shaken, shake_hands
from dragon.infrastructure.errors import NodeLostError
from dragon.runtime.credentials import client_context
from dragon.runtime.protocol.agents import Exchange, LookUp, Outside, SignalProcess
from dragon.runtime.rpc import RemoteError


def test_replies_have_values_and_payloads_of_any_size() -> None:
    async def test(ends: Ends) -> None:
        for size in (0, 1, 40_000, 300_000, 5_000_000):
            value, payload = await ends.echo({"size": size}, bytes(size))
            assert value == {"size": size}
            assert bytes(payload) == bytes(size)
        answers = [ends.ask({"n": n}, b"x" * n) for n in range(500)]
        values = [told(answer)[0] for answer in await asyncio.gather(*answers)]
        assert values == [{"n": n} for n in range(500)]

    run(test)


def test_an_error_keeps_its_kind_and_text() -> None:
    async def test(ends: Ends) -> None:
        with pytest.raises(RemoteError, match="no such thing") as error:
            await ends.links[0].call(1, LookUp("ocean"))
        assert error.value.kind == "LookupError"

    run(test)


def test_requests_and_notices_arrive_in_order() -> None:
    async def test(ends: Ends) -> None:
        for n in range(100):
            ends.links[0].forward(1, SignalProcess(n, 0))
            ends.links[0].forward(1, Exchange("job", "key", [], 0, n))
        await ends.echo(100)
        assert ends.log[0] == [
            *(entry for n in range(100) for entry in (("notice", n, 0), ("asked", n, 0))),
            ("asked", 100, 0),
        ]

    run(test)


def test_a_cancelled_request_is_cancelled_on_the_other_node() -> None:
    async def test(ends: Ends) -> None:
        future = ends.wait()
        await ends.echo()
        future.cancel()
        await ends.cancelled.wait()

    run(test)


def test_requests_to_a_lost_node_fail_with_its_name() -> None:
    async def test(ends: Ends) -> None:
        future = ends.wait()
        await ends.echo()
        ends.lose(1, "its power is off")
        with pytest.raises(NodeLostError, match=r"node 1 \(node1.cluster.org\) is lost: .*power"):
            await future
        with pytest.raises(NodeLostError, match="power"):
            await ends.echo()

    run(test)


def test_a_connection_that_breaks_while_it_is_established_is_retried() -> None:
    async def test(ends: Ends) -> None:
        loop, broken = asyncio.get_running_loop(), []
        loop.remove_reader(ends.sockets[1])

        def break_the_first_two() -> None:
            connection, _ = ends.sockets[1].accept()
            if len(broken) < 2:
                broken.append(connection)
                connection.close()
            else:
                connection.setblocking(False)
                accepted.append(loop.create_task(ends.links[1].admit(connection, "")))

        accepted: list[asyncio.Task[object]] = []
        loop.add_reader(ends.sockets[1], break_the_first_two)
        value, _ = await ends.echo({"still": "here"})
        assert value == {"still": "here"}
        assert len(broken) == 2

    run(test)


SIZES = st.one_of(st.integers(0, 2000), st.integers(LARGE - 2, LARGE + 2), st.integers(2**20, 2**23))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["asks", "tells", "forwards"]), st.integers(0, 1), SIZES),
        st.tuples(st.sampled_from(["breaks", "closes one end", "waits"]), st.integers(0, 1), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_whatever_two_agents_send_is_handled_once_and_in_order_while_connections_break(
    steps: list[tuple[str, int, int]],
) -> None:
    async def test(ends: Ends) -> None:
        sent: list[list[tuple[str, int, int]]] = [[], []]
        answers: list[tuple[int, int, asyncio.Future[Answer]]] = []
        for number, (what, side, size) in enumerate(steps):
            links, other = ends.links[side], 1 - side
            match what:
                case "asks":
                    answers.append((number, size, ends.ask(number, bytes(size), other)))
                    sent[side].append(("asked", number, size))
                case "tells":
                    links.forward(other, SignalProcess(number, 0))
                    sent[side].append(("notice", number, 0))
                case "forwards":
                    links.forward(other, Exchange("job", "key", [], 0, number))
                    sent[side].append(("asked", number, 0))
                case "breaks":
                    ends.break_connections()
                case "closes one end":
                    ends.break_connections([side])
                case _:
                    await asyncio.sleep(0.002)
        for number, size, answer in answers:
            value, payload = told(await answer)
            assert (value, memoryview(payload).nbytes) == (number, size)
        while len(ends.log[0]) + len(ends.log[1]) < len(sent[0]) + len(sent[1]):
            await asyncio.sleep(0.001)
        await asyncio.gather(ends.echo(-1), ends.echo(-1, of=0))  # whatever was sent twice has arrived
        last = ("asked", -1, 0)
        assert ends.log == [[*sent[0], last], [*sent[1], last]]
        assert not ends.broken.is_set()

    run(test)


def test_a_connection_that_breaks_as_soon_as_it_is_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(ends: Ends) -> None:
        made, links = [], ends.links[0]
        use = links._use

        def break_the_first(connection: socket.socket, shaken: Shaken) -> None:
            use(connection, shaken)
            made.append(shaken)
            if len(made) == 1:
                ends.break_connections([0])

        monkeypatch.setattr(links, "_use", break_the_first)
        assert (await ends.echo({"still": "here"}))[0] == {"still": "here"}
        assert len(made) > 1

    run(test)


def test_what_was_in_flight_is_lost_if_no_connection_can_be_made() -> None:
    async def test(ends: Ends) -> None:
        future = ends.wait()
        await ends.echo()
        for links in ends.links:
            assert links._listener is not None
            links._listener.close()
        ends.break_connections()
        ends.links[0].forward(1, SignalProcess(7, 0))
        with pytest.raises(NodeLostError, match=r"connection to node 1 \(node1.cluster.org\) broke"):
            await future
        await ends.cancelled.wait()  # the other side gave up, too
        ends.links[1].listen(socket.create_server(("127.0.0.1", ends.port)))
        while not ends.told:
            await asyncio.sleep(0.01)
        assert (await ends.echo({"still": "here"}))[0] == {"still": "here"}
        assert ends.told == [(0, SignalProcess(7, 0))]

    run(test)


records = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.binary(max_size=200).map(lambda data: len(data).to_bytes(4, "little") + data),
    st.integers(0, 2**32 - 1).map(lambda size: size.to_bytes(4, "little")),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, min_size=1, max_size=4), st.booleans())
def test_invalid_data_of_a_peer_does_not_disturb_the_session(sent: list[bytes], greets: bool) -> None:
    async def test(ends: Ends) -> None:
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", ends.port))
        if greets:
            await shake_hands(connection, client_context(*KEYS[0]), False, lambda node: Hello())
        for data in sent:
            try:
                await loop.sock_sendall(connection, data)
            except ConnectionError:
                break  # it was thrown out
        connection.close()
        value, _ = await ends.echo({"still": "here"})
        assert value == {"still": "here"}

    run(test)


def test_an_agent_that_ends_closes_its_connections() -> None:
    callers = []

    async def test(ends: Ends) -> None:
        callers.append(socket.create_connection(("127.0.0.1", ends.port), timeout=10))
        await asyncio.sleep(0.05)  # it is taken in, and has said nothing

    run(test)
    with callers[0] as caller:
        assert caller.recv(1) == b""


def test_messages_of_a_lost_node_are_ignored_and_it_is_notified() -> None:
    async def test(ends: Ends) -> None:
        await ends.echo()
        ends.lose(0, "its cable was out")
        ends.told.clear()
        while not ends.told:  # it does not know yet, and calls again
            ends.links[0].forward(1, SignalProcess(1, 0))
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert all(told == (1, Outside("its cable was out")) for told in ends.told)

    run(test)


def test_the_connection_to_an_unreachable_node_is_retried() -> None:
    async def test(ends: Ends) -> None:
        there = ends.links[0].members[1]
        ends.links[0].members[1] = msgspec.structs.replace(there, port=1)  # nobody listens there
        with pytest.raises(NodeLostError, match=r"the connection to node 1 .* broke: no connection"):
            await ends.echo()
        assert 1 in ends.links[0].unreachable
        ends.links[0].members[1] = there
        value, _ = await ends.echo({"again": True})
        assert value == {"again": True}
        assert not ends.links[0].unreachable

    run(test)


async def in_doubt(ends: Ends) -> asyncio.Future[object]:
    """Return a request to a node that cannot be reached, while it is undecided whether the node is lost."""
    ends.links[0].members[1] = msgspec.structs.replace(ends.links[0].members[1], port=1)  # nobody listens there
    waiting = ends.ask()
    while ends.links[0].settled(1).done():
        await asyncio.sleep(0.01)
    return waiting


def test_a_cancelled_wait_for_the_decision_on_a_node_does_not_end_other_waits() -> None:
    async def test(ends: Ends) -> None:
        ends.links[0].verdict = 0.5
        waiting = await in_doubt(ends)
        killed, other = ends.links[0].settled(1), ends.links[0].settled(1)
        killed.cancel()
        await other
        with pytest.raises(NodeLostError, match="no connection"):
            await waiting

    run(test)


def test_a_wait_for_the_decision_on_a_node_is_not_shortened_by_an_earlier_one() -> None:
    async def test(ends: Ends) -> None:
        loop, verdict = asyncio.get_running_loop(), 1.0
        ends.links[0].verdict = verdict
        waiting = await in_doubt(ends)
        await asyncio.sleep(verdict / 2)
        await ends.ask(of=0)  # it lives
        assert ends.links[0].settled(1).done()
        await waiting
        begun, unanswered = loop.time(), ends.wait()
        ends.links[1].close()
        while ends.links[0].settled(1).done():
            await asyncio.sleep(0.01)
        await ends.links[0].settled(1)
        assert loop.time() - begun > 0.9 * verdict
        with pytest.raises(NodeLostError):
            await unanswered

    run(test)
