"""How the start-up of a run grows with its nodes: agents without processes, several in each process of this machine.

    python benchmarks/start_up.py [--largest 512]

Each agent joins as a real one does: it calls the front end by TLS, proves the secret, gets its certificate, and learns
from its parent in the tree who belongs to the run. Printed are the seconds from the token to the last agent's list, the
length of the longest chain of agents that told each other, and the bytes that the front end and the busiest agent sent.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import tempfile
import time
from typing import Any

import msgspec
import uvloop

from dragon import _core
from dragon.agent.cluster import Cluster
from dragon.agent.wire.links import Links
from dragon.control import Control, Message, join
from dragon.infrastructure import variables
from dragon.infrastructure.membership import Token, parent_of
from dragon.infrastructure.node_desc import NodeDescriptor, describe_this_node
from dragon.launcher.rendezvous import Rendezvous
from dragon.runtime.protocol.request import Request
from dragon.runtime.rpc import Session

_PER_PROCESS = 64
_TIMEOUT = 120.0


def depth(index: int) -> int:
    """Return the number of steps from the first node to a node."""
    return 0 if index == 0 else 1 + depth(parent_of(index))


async def _agent(token: Token, index: int, description: NodeDescriptor) -> Cluster:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
    node = description._replace(host_name=f"node-{index}")
    own = msgspec.structs.replace(token, index=index)
    membership, control = await join(own, node, ["127.0.0.1"], port, _TIMEOUT)
    cluster = Cluster(membership, control, listener, None, plain=False)
    await cluster.find_members()
    return cluster


def _agents(token_text: str, indices: list[int], done: Any, leave: Any, sent: Any) -> None:
    """Run some of the agents, in a process of their own."""
    _core.create_arena(variables.arena_limit())
    counted: dict[Any, int] = {}
    session_of = Links._session_of

    def counting(links: Links, node: int) -> Session:
        known, session = node in links._sessions, session_of(links, node)
        if not known:
            send = session._send

            def count(message: bytes) -> int:
                counted[links] = counted.get(links, 0) + len(message)
                return send(message)

            session._send = count
        return session

    Links._session_of = counting  # type: ignore[method-assign, assignment]
    _core.set_bell_folder(tempfile.mkdtemp())

    async def run() -> None:
        token, description = Token.decode(token_text), describe_this_node()
        agents = await asyncio.gather(*(_agent(token, index, description) for index in indices))
        sent.put(max(counted.values(), default=0))
        done.release()
        await asyncio.get_running_loop().run_in_executor(None, leave.wait)
        del agents

    uvloop.run(run())


async def _front_end(count: int) -> tuple[float, int, int]:
    fork = multiprocessing.get_context("fork")
    done, leave, sent = fork.Semaphore(0), fork.Event(), fork.SimpleQueue()
    meeting = Rendezvous([f"node-{index}" for index in range(count)])
    token = meeting.listen(["127.0.0.1"]).encode()
    groups = [list(range(count))[first : first + _PER_PROCESS] for first in range(0, count, _PER_PROCESS)]
    processes = [fork.Process(target=_agents, args=(token, group, done, leave, sent)) for group in groups]
    for process in processes:
        process.start()
    start = time.perf_counter()
    await meeting.gather(_TIMEOUT)
    written = 0
    for control in meeting.controls:
        assert control is not None

        def counting(message: Message | Request[None], control: Control = control) -> None:
            nonlocal written
            written += len(msgspec.msgpack.encode(message))
            Control.send(control, message)

        control.send = counting  # type: ignore[method-assign]
    meeting.announce({})
    loop = asyncio.get_running_loop()
    for _ in processes:
        await loop.run_in_executor(None, done.acquire)
    seconds = time.perf_counter() - start
    busiest = max(sent.get() for _ in processes)
    leave.set()
    meeting.close()
    for process in processes:
        process.join()
    return seconds, written, busiest


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=512, help="agents of the last line (default: 512)")
    count, largest = 4, parser.parse_args().largest
    print("agents  seconds  ms an agent  steps  front end sent (KB)  busiest agent sent (KB)")
    while count <= largest:
        seconds, written, busiest = asyncio.run(_front_end(count))
        steps = depth(count - 1)
        print(
            f"{count:6}  {seconds:7.2f}  {seconds / count * 1000:11.2f}  {steps:5}"
            f"  {written / 1000:19.0f}  {busiest / 1000:23.0f}"
        )
        count *= 2


if __name__ == "__main__":
    main()
