"""PMI-1, which MPICH and its derivatives use: one request per line, one reply (Flux RFC 13, "Simple PMI wire
protocol").

Each rank inherits its own socket. What ranks put is kept by the node until the next barrier, at which the nodes
exchange it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from dragon.agent.mpi.job import Ask, JobOverError, Joining, Side, Tell
from dragon.runtime.protocol.agents import LookUp, OfService, Part, Program, Publish, SpawnRanks, Unpublish
from dragon.runtime.rpc import RemoteError


def process_mapping(placement: Sequence[int], longest: int = 1024) -> str:
    """Return the value of PMI_process_mapping for ranks on these nodes, in rank order; "" if it would be too long. It
    is "(vector,(first node, nodes, ranks on each), …)" with nodes numbered in the order of their first ranks. If there
    are more ranks, it is repeated from the beginning (MPICH, "PMI process mapping")."""
    order: dict[int, int] = {}
    for node in placement:
        order.setdefault(node, len(order))
    runs: list[list[int]] = []  # node, ranks
    for node in placement:
        if runs and runs[-1][0] == order[node]:
            runs[-1][1] += 1
        else:
            runs.append([order[node], 1])
    blocks: list[list[int]] = []  # first node, nodes, ranks on each
    for node, ranks in _period(runs):
        if blocks and blocks[-1][0] + blocks[-1][1] == node and blocks[-1][2] == ranks:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, ranks])
    text = f"(vector,{','.join('({},{},{})'.format(*block) for block in blocks)})"
    return text if len(text) < longest else ""


def _period(runs: list[list[int]]) -> list[list[int]]:
    """Return the shortest prefix whose repetition is the whole."""
    for length in range(1, len(runs) // 2 + 1):
        if len(runs) % length == 0 and runs == runs[:length] * (len(runs) // length):
            return runs[:length]
    return runs


_LONGEST_KEY, _LONGEST_VALUE = 64, 1024
_LONGEST = f"kvsname_max=256 keylen_max={_LONGEST_KEY} vallen_max={_LONGEST_VALUE}"
_LONGEST_REQUEST = 1024 * 1024  # a spawn with all its arguments
_CHUNK = 64 * 1024


class ProtocolError(ValueError):
    """Raised if a rank sent something that is not PMI-1."""


class Pmi1(Side):
    """One node's side of a job."""

    def __init__(self, part: Part, ask: Ask, tell: Tell) -> None:
        super().__init__(part, ask, tell)
        self.values = dict(part.values)
        mapping = process_mapping(part.placement, _LONGEST_VALUE)
        if mapping:
            self.values["PMI_process_mapping"] = mapping
        self._put: dict[str, str] = {}
        self._ranks: dict[int, _Rank] = {}
        self._barriers = 0

    def join(self, rank: int) -> Joining:
        ours, theirs = socket.socketpair()
        self._ranks[rank] = _Rank(self, rank, ours)
        environment = {"PMI_RANK": str(rank), "PMI_SIZE": str(self.part.size), **self.place_of(rank)}
        if self.part.spawned:
            environment["PMI_SPAWNED"] = "1"
        return Joining(environment, {"PMI_FD": theirs.detach()})

    def ended(self, rank: int, code: int) -> None:
        self._ranks[rank].read()  # its last requests
        self._ranks[rank].close()
        super().ended(rank, code)

    def close(self) -> bool:
        for rank in self._ranks.values():
            rank.close()
        return super().close()

    # ---- requests of ranks

    def put(self, key: str, value: str) -> None:
        """Set a value. It is visible on this node at once, everywhere after the next barrier."""
        self.values[key] = self._put[key] = value

    def enter(self) -> None:
        if all(rank.waits for rank in self._ranks.values()) and len(self._ranks) == len(self.part.ranks):
            self.soon(self._barrier())

    async def _barrier(self) -> None:
        self._barriers += 1
        put, self._put = self._put, {}
        nodes = sorted(set(self.part.placement))
        try:
            given = await self.exchange(f"barrier {self._barriers}", nodes, put)
        except JobOverError:
            return
        for values in given.values():
            self.values.update(values)
        for rank in self._ranks.values():
            rank.leave_barrier()

    def answer(self, rank: _Rank, question: Awaitable[object], reply: Callable[[object], str]) -> None:
        """Reply once another node has answered."""

        async def wait() -> None:
            try:
                rank.write(reply(await question))
            except (LookupError, OSError, RemoteError, ValueError) as error:
                rank.write(reply(error))

        self.soon(wait())


class _Rank:
    """The connection to one rank."""

    def __init__(self, job: Pmi1, rank: int, connection: socket.socket) -> None:
        self.job = job
        self.rank = rank
        self.waits = False
        self._connection = connection
        self._received = b""
        self._lines: list[str] | None = None  # of a request over several lines
        self._programs: list[dict[str, str]] = []
        self._facts = {
            "get_maxes": f"maxes rc=0 {_LONGEST}",
            "get_appnum": f"appnum rc=0 appnum={job.part.applications[rank]}",
            "get_my_kvsname": f"my_kvsname rc=0 kvsname={job.part.name}",
            "get_universe_size": f"universe_size rc=0 size={job.part.universe}",
        }
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self.read)

    def close(self) -> None:
        if self._connection.fileno() >= 0:
            self._loop.remove_reader(self._connection)
            self._connection.close()
        self.waits = False

    def read(self) -> None:
        while self._connection.fileno() >= 0:
            try:
                data = self._connection.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._received += data
            *lines, self._received = self._received.split(b"\n")
            try:
                for line in lines:
                    self._take(line.decode())
                if len(self._received) > _LONGEST_REQUEST:
                    raise ProtocolError("a line without end")
            except (KeyError, ValueError) as error:
                self.job.fail(self.rank, f"sent invalid PMI-1: {error}", 1)
                self.close()

    def write(self, reply: str) -> None:
        """Send a reply; ignored if the rank has ended."""
        try:
            self._connection.sendall(reply.encode() + b"\n")
        except OSError:
            self.close()

    def leave_barrier(self) -> None:
        self.waits = False
        self.write("cmd=barrier_out rc=0")

    def _take(self, line: str) -> None:
        if self._lines is not None:
            if line == "endcmd":
                lines, self._lines = self._lines, None
                self._spawn(dict(_pair(each) for each in lines))
            else:
                self._lines.append(line)
                if sum(map(len, self._lines)) > _LONGEST_REQUEST:
                    raise ProtocolError("a request without end")
        elif line.startswith("mcmd="):
            if line != "mcmd=spawn":
                raise ProtocolError(f"{line[:40]!r} is not known")
            self._lines = []
        elif line:
            values = _parse(line)
            asked = values.get("cmd", "")
            handler = getattr(self, f"_on_{asked}", None)
            if handler is None and asked not in self._facts:
                raise ProtocolError(f"the request {line[:40]!r} is not known")
            reply = handler(values) if handler is not None else self._facts[asked]
            if reply:
                self.write(f"cmd={reply}")

    def _on_init(self, values: dict[str, str]) -> str:
        self.job.begin(self.rank)
        version = values.get("pmi_version")
        return f"response_to_init rc={0 if version == '1' else -1} pmi_version=1 pmi_subversion=1"

    def _on_put(self, values: dict[str, str]) -> str:
        key, value = values["key"], values["value"]
        if len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            return "put_result rc=-1 msg=too_long"
        self.job.put(key, value)
        return "put_result rc=0 msg=success"

    def _on_get(self, values: dict[str, str]) -> str:
        value = self.job.values.get(values["key"])
        if value is None:
            return "get_result rc=-1 msg=key_not_found value=unknown"
        return f"get_result rc=0 msg=success value={value}"

    def _on_barrier_in(self, values: dict[str, str]) -> str:
        self.waits = True
        self.job.enter()
        return ""

    def _on_finalize(self, values: dict[str, str]) -> str:
        self.job.finalised.add(self.rank)
        return "finalize_ack rc=0"

    def _on_abort(self, values: dict[str, str]) -> str:
        code = values.get("exitcode", "1")
        code = code if code.lstrip("-").isdigit() else "1"
        message = values.get("message") or values.get("error_msg")
        message = None if message == "abort" else message  # MPICH's default, without information
        what = f"aborted the job with exit code {code}" + (f": {message}" if message else "")
        self.job.fail(self.rank, what, int(code) or 1, at_once=True)
        return ""

    def _on_publish_name(self, values: dict[str, str]) -> str:
        return self._ask_names(Publish(values["service"], values["port"]), "publish_result")

    def _on_unpublish_name(self, values: dict[str, str]) -> str:
        return self._ask_names(Unpublish(values["service"]), "unpublish_result")

    def _on_lookup_name(self, values: dict[str, str]) -> str:
        return self._ask_names(LookUp(values["service"]), "lookup_result")

    def _ask_names(self, request: OfService[str] | OfService[None], result: str) -> str:
        def reply(answer: object) -> str:
            if isinstance(answer, Exception):
                return f"cmd={result} rc=1 msg={'_'.join(str(answer).split())}"
            return f"cmd={result} rc=0 info=ok" + (f" port={answer}" if answer is not None else "")

        self.job.answer(self, self.job.ask(request), reply)
        return ""

    def _spawn(self, values: dict[str, str]) -> None:
        """Handle MPI_Comm_spawn; the programs of one MPI_Comm_spawn_multiple arrive one after the other."""
        self._programs.append(values)
        if int(values["spawnssofar"]) < int(values["totspawns"]):
            return
        programs, self._programs = self._programs, []
        count = sum(int(program["nprocs"]) for program in programs)

        def reply(answer: object) -> str:
            if isinstance(answer, Exception):
                return f"cmd=spawn_result rc=-1 errcodes={','.join(['1'] * count)} msg={'_'.join(str(answer).split())}"
            return f"cmd=spawn_result rc=0 errcodes={','.join(['0'] * count)}"

        question = SpawnRanks(self.job.part.name, self.rank, [_program(values) for values in programs])
        self.job.answer(self, self.job.ask(question), reply)


def _parse(line: str) -> dict[str, str]:
    values: dict[str, str] = {}
    last = ""
    for word in line.split(" "):
        key, equals, value = word.partition("=")
        if equals:
            last = key
            values[key] = value
        elif last:
            values[last] += f" {word}"  # only messages have spaces
    return values


def _pair(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals:
        raise ProtocolError(f"{line[:40]!r} is not a key and a value")
    return key, value


def _program(values: dict[str, str]) -> Program:
    infos = {values[f"info_key_{i}"]: values[f"info_val_{i}"] for i in range(int(values.get("info_num", "0")))}
    return Program(
        count=int(values["nprocs"]),
        executable=values["execname"],
        arguments=[values[f"arg{i}"] for i in range(1, int(values.get("argcnt", "0")) + 1)],
        folder=infos.get("wdir", ""),
        host=infos.get("host", ""),
        values={
            values[f"preput_key_{i}"]: values[f"preput_val_{i}"] for i in range(int(values.get("preput_num", "0")))
        },
    )
