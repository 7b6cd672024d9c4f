"""The process that the site's launcher starts for each rank of a job. It passes everything that it was given for the
rank to the agent of its node, which starts the rank, and ends as the rank does, so that the launcher sees how.

It is run as a file and imports nothing of the runtime, since a node starts one for each of its ranks at the same time.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys

JOB = "DRAGON_JOB"
SIZE = 8  # bytes of the size before each message
_RANKS = ("SLURM_PROCID", "PALS_RANKID", "PMI_RANK")
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)


def address(job: str, rank: int | str) -> str:
    """Return the abstract socket, which leaves no file behind, at which the agent of a node awaits a rank."""
    return f"\0{job}-{rank}"


def user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def main() -> int:
    """Run the relay of the rank that the launcher has set in the environment. Returns the exit code of the rank."""
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "")
    job = os.environ.pop(JOB)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        try:
            agent.connect(address(job, rank))
        except ConnectionRefusedError:
            return _refuse(f"rank {rank} was started on {socket.gethostname()}, where its job does not expect it")
        if user_of(agent) != os.getuid():
            return _refuse(f"another user's process awaits rank {rank} on {socket.gethostname()}")
        _hand_over(agent)
        told = agent.recv(SIZE)
    if not told:
        return _refuse(f"the agent on {socket.gethostname()} has ended, and with it rank {rank}")
    return _end_like(int.from_bytes(told, "little", signed=True))


def _refuse(why: str) -> int:
    print(f"dragon: {why}", file=sys.stderr, flush=True)
    return 1


def _hand_over(agent: socket.socket) -> None:
    inherited = {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, agent.fileno()}
    named = {
        name: int(value)
        for name, value in os.environ.items()
        if name.endswith("_FD") and value.isdecimal() and int(value) in inherited
    }
    body = os.fsencode("\0".join([" ".join(named), *(f"{name}={value}" for name, value in os.environ.items())]))
    size = len(body).to_bytes(SIZE, "little")
    if named:
        socket.send_fds(agent, [size], list(named.values()))
    else:
        agent.sendall(size)
    agent.sendall(body)
    for descriptor in set(named.values()):
        os.close(descriptor)  # only the rank keeps them, since the launcher may detect its end by them


def received(body: bytes) -> tuple[list[str], dict[str, str]]:
    """Return what a relay has sent: the variables with the numbers of its descriptors, and its environment."""
    named, *variables = body.decode(errors="replace").split("\0")
    return named.split(), dict(variable.split("=", 1) for variable in variables)


def _end_like(code: int) -> int:
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code not in _UNCATCHABLE:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


if __name__ == "__main__":
    sys.exit(main())
