"""Requests of ranks over PMI-1: as recorded from MPICH, and invalid ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragon.agent.mpi.pmi1 import Pmi1, process_mapping
from dragon.runtime.protocol.agents import Exchange, JobFailed, LookUp, OfJob, Part, RankMissing
from dragon.runtime.protocol.request import Request
from dragon.runtime.rpc import RemoteError

RECORDED = Path(__file__).parent / "recorded_mpich.txt"


class Home:
    """The nodes of one job, and the sockets of its ranks."""

    def __init__(self, placement: list[int], name: str = "dragon-job") -> None:
        self.not_found: Exception = LookupError()
        self.failures: list[tuple[int, str]] = []
        self.missed: list[tuple[int, int]] = []
        self.gathered: dict[str, tuple[dict[int, Any], asyncio.Event]] = {}
        self.ends: dict[int, socket.socket] = {}
        self.nodes = {}
        for node in sorted(set(placement)):
            ranks = [rank for rank, at in enumerate(placement) if at == node]
            part = Part(
                name=name,
                backend="pmi1",
                home=0,
                node=node,
                ranks=ranks,
                placement=placement,
                hosts={at: f"node-{at}" for at in placement},
                applications=[0] * len(placement),
                universe=8,
            )
            self.nodes[node] = served = Pmi1(part, self.request, self.tell)
            for rank in ranks:
                joining = served.join(rank)
                assert joining.environment["PMI_RANK"] == str(rank)
                self.ends[rank] = socket.socket(fileno=joining.descriptors["PMI_FD"])
                self.ends[rank].setblocking(False)

    async def request(self, node: int, request: Request[Any]) -> Any:
        match request:
            case Exchange(_, key, nodes, sender, data):
                given, complete = self.gathered.setdefault(key, ({}, asyncio.Event()))
                given[sender] = data
                if given.keys() >= set(nodes):
                    complete.set()
                await complete.wait()
                return given
            case LookUp():
                raise self.not_found

    def tell(self, node: int, request: OfJob[None]) -> None:
        match request:
            case JobFailed(_, rank, what):
                self.failures.append((rank, what))
            case RankMissing(_, rank, code):
                self.missed.append((rank, code))

    async def say(self, rank: int, text: str) -> None:
        await asyncio.get_running_loop().sock_sendall(self.ends[rank], text.encode())

    async def hear(self, rank: int) -> str:
        data = b""
        while not data.endswith(b"\n"):
            more = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.ends[rank], 1), 10)
            if not more:
                return ""
            data += more
        return data.decode().rstrip("\n")

    async def ask(self, rank: int, text: str) -> str:
        await self.say(rank, text + "\n")
        return await self.hear(rank)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        for end in self.ends.values():
            end.close()


def run(work: Callable[[Home], Coroutine[Any, Any, None]], placement: list[int], name: str = "dragon-job") -> None:
    async def whole() -> None:
        home = Home(placement, name)
        try:
            await work(home)
        finally:
            home.close()

    asyncio.run(whole())


def test_mpich_gets_the_recorded_replies() -> None:
    conversations = [talk.splitlines() for talk in RECORDED.read_text().split("\n\n")]
    name = next(line for line in conversations[0] if "my_kvsname" in line and line[0] == "<").rpartition("=")[2]
    # The ranks were recorded as they ended; each puts under keys that end in its number.
    of = {
        next(line for line in talk if "-allgather-1-" in line).split("-allgather-1-")[1][0]: talk
        for talk in conversations
    }

    async def replay(home: Home) -> None:
        async def one(rank: int) -> None:
            for line in of[str(rank)]:
                if line[0] == ">":
                    await home.say(rank, line[2:] + "\n")
                else:
                    assert await home.hear(rank) == line[2:]
            home.nodes[rank].ended(rank, 0)

        await asyncio.gather(one(0), one(1))
        assert home.failures == []
        assert home.missed == []

    run(replay, [0, 1], name)


def test_all_ranks_can_get_values_after_the_barrier() -> None:
    async def work(home: Home) -> None:
        for rank in range(3):
            await home.ask(rank, "cmd=init pmi_version=1 pmi_subversion=1")
            assert (
                await home.ask(rank, f"cmd=put kvsname=k key=port{rank} value=v{rank}=x")
                == "cmd=put_result rc=0 msg=success"
            )
        assert "key_not_found" in await home.ask(2, "cmd=get kvsname=k key=port0")
        for rank in range(3):
            await home.say(rank, "cmd=barrier_in\n")
        for rank in range(3):
            assert await home.hear(rank) == "cmd=barrier_out rc=0"
            for other in range(3):
                answer = await home.ask(rank, f"cmd=get kvsname=k key=port{other}")
                assert answer == f"cmd=get_result rc=0 msg=success value=v{other}=x"

    run(work, [0, 0, 1])


def test_a_rank_without_finalize_and_a_rank_without_init_are_reported_differently() -> None:
    async def work(home: Home) -> None:
        await home.ask(0, "cmd=init pmi_version=1 pmi_subversion=1")
        home.nodes[0].ended(0, 0)
        home.nodes[0].ended(1, 3)
        assert home.failures == [(0, "ended without MPI_Finalize")]
        assert home.missed == [(1, 3)]

    run(work, [0, 0])


def test_an_abort_is_reported_with_its_message() -> None:
    async def work(home: Home) -> None:
        await home.say(0, "cmd=abort exitcode=7 message=out of coffee\n")
        while not home.failures:
            await asyncio.sleep(0.001)
        assert home.failures == [(0, "aborted the job with exit code 7: out of coffee")]

    run(work, [0])


@pytest.mark.parametrize("told_by", [LookupError, partial(RemoteError, "LookupError")])
def test_looking_up_an_unpublished_name_returns_an_error(told_by: Callable[[str], Exception]) -> None:
    async def work(home: Home) -> None:
        home.not_found = told_by("no process has published it")
        answer = await home.ask(0, "cmd=lookup_name service=ocean")
        assert answer == "cmd=lookup_result rc=1 msg=no_process_has_published_it"

    run(work, [0])


NONSENSE = """cmd=init pmi_version=1|cmd=get|cmd=put key=k|cmd=put key= value=|mcmd=spawn|endcmd|nprocs=many|totspawns=1
spawnssofar=1|cmd=barrier_in|cmd=abort exitcode=x|cmd=|cmd=__init__|mcmd=dance|cmd=finalize|""".replace(
    "\n", "|"
).split("|")


@settings(max_examples=150)
@given(
    st.lists(
        st.one_of(st.binary(max_size=60), st.sampled_from([f"{line}\n".encode() for line in NONSENSE])), max_size=12
    )
)
def test_other_ranks_are_served_after_invalid_data_from_one(pieces: list[bytes]) -> None:
    async def work(home: Home) -> None:
        for piece in pieces:
            try:
                await asyncio.get_running_loop().sock_sendall(home.ends[0], piece)
            except (BrokenPipeError, ConnectionResetError):
                break  # it was cut off
            await asyncio.sleep(0)
        assert await home.ask(1, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0"
        assert all(rank == 0 for rank, _ in home.failures)

    run(work, [0, 0])


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        ([0, 0, 0], "(vector,(0,1,3))"),
        ([0, 1, 2, 3], "(vector,(0,4,1))"),
        ([0, 1, 2, 0, 1, 2], "(vector,(0,3,1))"),
        ([0, 0, 1, 1], "(vector,(0,2,2))"),
        ([5, 5, 3], "(vector,(0,1,2),(1,1,1))"),
        ([0, 1, 0, 0, 1], "(vector,(0,2,1),(0,1,2),(1,1,1))"),
    ],
)
def test_the_mapping_of_ranks_to_nodes_is_compact(placement: list[int], text: str) -> None:
    assert process_mapping(placement) == text


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_the_mapping_agrees_with_the_placement(placement: list[int]) -> None:
    blocks = [tuple(map(int, block.split(","))) for block in process_mapping(placement, 10**6)[9:-2].split("),(")]
    nodes = []
    while len(nodes) < len(placement):
        for first, count, ranks in blocks:
            nodes += [first + node for node in range(count) for _ in range(ranks)]
    order: dict[int, int] = {}
    assert nodes[: len(placement)] == [order.setdefault(node, len(order)) for node in placement]
