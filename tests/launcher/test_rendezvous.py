"""The rendezvous: which agents may join a run, and the errors about those that may not or do not."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meeting import Meeting, asynchronously, node

import dragon
from dragon.control import NONCE_SIZE, Challenge, Control, Join, JoinError, Refused, join, proof
from dragon.infrastructure.membership import Member, Token
from dragon.launcher import rendezvous
from dragon.launcher.base import LaunchError
from dragon.runtime.log import runtime_log


@pytest.fixture
def refusals(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Capture the log of the front end."""
    runtime_log("frontend")  # sets the runtime's log up, which does not propagate
    monkeypatch.setattr(logging.getLogger("dragon"), "propagate", True)
    return caplog


async def greeting(meeting: Meeting, control: Control, **changed: Any) -> dict[str, Any]:
    """Return the reply of an agent to the challenge."""
    challenge = await control.receive()
    assert isinstance(challenge, Challenge)
    nonce = os.urandom(NONCE_SIZE)
    answer = {
        "nonce": nonce,
        "proof": proof(meeting.token.secret, challenge.nonce, nonce),
        "version": dragon.__version__,
        "index": None,
        "member": Member(node=node("a"), addresses=[], port=1),
    }
    return {**answer, **changed}


async def complete(meeting: Meeting, *names: str) -> None:
    """Let the expected nodes join, and end the rendezvous."""
    joining = [asyncio.ensure_future(meeting.join(name)) for name in names]
    await meeting.gather(20)
    meeting.announce({})
    for _, control in await asyncio.gather(*joining):
        control.close()
    await meeting.end()


def test_the_first_node_receives_all_members_and_the_others_the_first_one() -> None:
    async def run() -> None:
        meeting = Meeting("a", "b", "c")
        joining = [asyncio.ensure_future(meeting.join(name, index)) for index, name in enumerate("abc")]
        await meeting.gather(20)
        meeting.announce({"label": "basic"})
        joined = await asyncio.gather(*joining)
        for index, (membership, control) in enumerate(joined):
            assert membership.index == index
            assert membership.settings == {"label": "basic"}
            assert b"PRIVATE KEY" in membership.key
            control.close()
        (first, _), *others = joined
        assert [member.node.host_name for member in first.members] == ["a", "b", "c"]
        assert [member.node.is_primary for member in first.members] == [True, False, False]
        for membership, _ in others:
            assert membership.members == []
            assert membership.parent == first.members[0]
        await meeting.end()

    asynchronously(run())


def test_nodes_are_identified_by_name_if_the_launcher_gives_no_index() -> None:
    async def run() -> None:
        meeting = Meeting("a", "b.cluster.example", "c")
        joining = [asyncio.ensure_future(meeting.join(name)) for name in ("c.cluster.example", "b", "a")]
        await meeting.gather(20)
        meeting.announce({})
        joined = await asyncio.gather(*joining)
        assert [membership.index for membership, _ in joined] == [2, 1, 0]
        for _, control in joined:
            control.close()
        await meeting.end()

    asynchronously(run())


def test_the_error_names_missing_nodes() -> None:
    async def run() -> None:
        meeting = Meeting("alpha", "beta", "gamma")
        joining = asyncio.ensure_future(meeting.join("beta", timeout=5))
        with pytest.raises(LaunchError, match=r"2 of 3 nodes did not join within 1 s: alpha, gamma\. Check") as caught:
            await meeting.gather(1)
        assert str(meeting.port) in str(caught.value)
        joining.cancel()
        await meeting.end()

    asynchronously(run())


@pytest.mark.parametrize(
    ("nodes", "told"),
    [(("alpha", "beta"), "2 of 2 nodes: alpha, beta"), (("", ""), "2 of 2 nodes")],
    ids=["by name", "names that are not known"],
)
def test_a_message_during_a_long_wait_names_the_missing_nodes(
    nodes: tuple[str, ...], told: str, refusals: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragon.launcher.rendezvous._PROGRESS_AFTER_S", 0.1)

    async def run() -> None:
        meeting = Meeting(*nodes)
        with pytest.raises(LaunchError):
            await meeting.gather(0.5)
        await meeting.end()

    asynchronously(run())
    assert refusals.messages == [f"waiting up to 0.5 s for {told}"]


def test_the_error_names_a_node_that_is_lost_after_it_joined() -> None:
    async def run() -> None:
        meeting = Meeting("a", "b")
        control = await meeting.call()
        control.send(Join(**await greeting(meeting, control)))
        while meeting.members[0] is None:
            await asyncio.sleep(0.01)
        control.abort("gone")
        with pytest.raises(LaunchError, match="a joined and was lost again"):
            await meeting.gather(20)
        await meeting.end()

    asynchronously(run())


def test_a_run_with_a_spare_node_begins_without_a_node_that_is_lost() -> None:
    async def run() -> None:
        meeting = Meeting("a", "b", "c")
        meeting.spare = 1
        control = await meeting.call()
        control.send(Join(**await greeting(meeting, control)))
        while meeting.members[0] is None:
            await asyncio.sleep(0.01)
        control.abort("gone")
        joining = [asyncio.ensure_future(meeting.join(name)) for name in "bc"]
        await meeting.gather(20)
        meeting.settle()
        meeting.announce({})
        (first, _), (second, _) = joined = await asyncio.gather(*joining)
        assert [(member.node.host_name, member.node.index) for member in first.members] == [("b", 0), ("c", 1)]
        assert (second.index, second.parent) == (1, first.members[0])
        for _, control in joined:
            control.close()
        await meeting.end()

    asynchronously(run())


def test_a_wrong_secret_is_refused(refusals: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        meeting = Meeting("a")
        wrong = msgspec.structs.replace(meeting.token, secret=b"x" * 32)
        for _ in range(3):
            with pytest.raises(JoinError, match="did not accept the secret"):
                await join(wrong, node("a"), [], 1, 20)
        await complete(meeting, "a")

    asynchronously(run())
    assert refusals.text.count("did not know the secret") == 1


def test_a_recorded_greeting_is_refused(refusals: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        meeting = Meeting("a", "b")
        first = await meeting.call()
        recorded = await greeting(meeting, first)
        first.send(Join(**recorded))
        second = await meeting.call()
        await second.receive()
        second.send(Join(**{**recorded, "member": Member(node=node("b"), addresses=[], port=1)}))
        with pytest.raises(ConnectionError):
            await second.receive()
        assert meeting.members[1] is None
        first.close()
        await meeting.end()

    asynchronously(run())
    assert "did not know the secret" in refusals.text


def test_an_agent_does_not_authenticate_to_a_listener_with_another_certificate() -> None:
    async def run() -> None:
        meeting, other = Meeting("a"), Meeting("a")
        token = msgspec.structs.replace(meeting.token, addresses=other.token.addresses)
        with pytest.raises(JoinError, match="another program listens there"):
            await join(token, node("a"), [], 1, 2)
        assert other.members == [None]
        # The right address beside the wrong one is found.
        both = msgspec.structs.replace(meeting.token, addresses=[*other.token.addresses, *meeting.token.addresses])
        joining = asyncio.ensure_future(join(both, node("a"), [], 1, 20))
        await meeting.gather(20)
        meeting.announce({})
        (await joining)[1].close()
        await meeting.end()
        await other.end()

    asynchronously(run())


def test_joining_without_a_front_end_raises_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    token = Token(addresses=[f"127.0.0.1:{port}"], fingerprint="0" * 64, secret=b"")
    with pytest.raises(JoinError, match=rf"cannot reach the front end \(127.0.0.1:{port}: "):
        asynchronously(join(token, node("a"), [], 1, 1))


def test_joining_does_not_wait_for_a_front_end_that_has_ended() -> None:
    async def run() -> None:
        meeting = Meeting("a")
        await meeting.end()
        # The test's time-out is shorter.
        with pytest.raises(JoinError, match="cannot reach the front end"):
            await join(meeting.token, node("a"), [], 1, 1000)

    asynchronously(run())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"version": "0.0.1"}, "it runs dragon 0.0.1"),
        ({"index": 5}, "index 5 is taken, or does not exist"),
        ({"index": -1}, "index -1 is taken"),
        ({"member": {"port": "x"}}, "Expected `int`, got `str`"),
        ({"member": Member(node=node("stranger"), addresses=[], port=1)}, "'stranger' is not an expected node"),
    ],
)
def test_an_unsuitable_agent_is_refused_with_a_reason(changed: dict[str, Any], told: str) -> None:
    async def run() -> None:
        meeting = Meeting("a")
        control = await meeting.call()
        control.send(Join(**await greeting(meeting, control, **changed)))
        refused = await control.receive()
        assert isinstance(refused, Refused)
        assert told in refused.reason
        control.close()
        await complete(meeting, "a")

    asynchronously(run())


def test_silent_connections_are_closed_and_do_not_disturb_others(
    refusals: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_GREETING_TIMEOUT", 0.5)

    async def run() -> None:
        meeting = Meeting("a")
        loop = asyncio.get_running_loop()
        plain = [socket.create_connection(("127.0.0.1", meeting.port)) for _ in range(5)]
        silent = await meeting.call()
        assert isinstance(await silent.receive(), Challenge)
        with pytest.raises(ConnectionError):
            await silent.receive()
        for caller in plain:
            caller.setblocking(False)
            try:
                assert await loop.sock_recv(caller, 1) == b""
            except ConnectionError:
                pass  # dropped, which is what is asked for here
            caller.close()
        await complete(meeting, "a")

    asynchronously(run())
    assert refusals.text.count("sent no valid greeting") == 1


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xff\xff\xff",  # four gigabytes to come
        (300 * 1024).to_bytes(4, "little"),
        b"\x01\x00\x00\x00\xc1",  # a byte that msgpack does not use
        b"\x00\x00\x00\x00",
        (100_000).to_bytes(4, "little") + b"\x91" * 100_000,  # nested without end
        b"\x03\x00\x00\x00\x92\xa1\xff",
    ],
)
def test_malformed_or_too_large_frames_are_refused(frame: bytes, refusals: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        meeting = Meeting("a")
        for _ in range(2):
            control = await meeting.call()
            assert control.transport is not None
            control.transport.write(frame)
            await control.receive()
            with pytest.raises(ConnectionError):
                await control.receive()
        await complete(meeting, "a")

    asynchronously(run())
    assert refusals.text.count("malformed or too large") == 1


@given(
    st.lists(
        st.one_of(st.binary(max_size=200), st.binary(max_size=80).map(lambda b: len(b).to_bytes(4, "little") + b)),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_a_run_starts_after_invalid_data_from_an_unauthenticated_connection(sent: list[bytes], by_tls: bool) -> None:
    async def run() -> None:
        meeting = Meeting("a")
        if by_tls:
            control = await meeting.call()
            assert control.transport is not None
            for data in sent:
                control.transport.write(data)
        else:
            caller = socket.create_connection(("127.0.0.1", meeting.port))
            caller.sendall(b"".join(sent))
            caller.close()
        if by_tls:
            control.close()
        await complete(meeting, "a")

    asynchronously(run())


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["nonce", "proof", "version", "index", "member"]), values, max_size=5))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_a_run_starts_after_an_invalid_greeting_from_an_unauthenticated_connection(changed: dict[str, Any]) -> None:
    async def run() -> None:
        meeting = Meeting("a")
        control = await meeting.call()
        answer = await greeting(meeting, control)
        answer["member"] = None
        control.send(Join(**{**answer, **changed}))
        control.close()
        await complete(meeting, "a")

    asynchronously(run())


def test_nodes_can_join_although_hundreds_of_silent_connections_are_open() -> None:
    async def run() -> None:
        meeting = Meeting("a", "b")
        strangers = [socket.socket() for _ in range(700)]
        for stranger in strangers:
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", meeting.port))
        await asyncio.sleep(0.1)
        joining = [asyncio.ensure_future(meeting.join(name, timeout=10)) for name in "ab"]
        await meeting.gather(10)
        meeting.announce({})
        for _, control in await asyncio.gather(*joining):
            control.close()
        for stranger in strangers:
            stranger.close()
        await meeting.end()

    asynchronously(run())
