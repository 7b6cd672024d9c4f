"""Claims of several programs on what they share: who is counted, and that nothing is left of those that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragon.claims import Claim
from dragon.runtime.folder import find_runs

CLAIMING = """
import sys
from dragon.claims import Claim

claim = Claim("cores")
assert claim.settle(lambda others: sys.argv[1].encode())
print(flush=True)
sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("own_folders")


def others(claim: Claim) -> list[bytes]:
    """What all but this one have claimed."""
    found: list[bytes] = []

    def look(claimed: list[bytes]) -> bytes:
        found.extend(claimed)
        return b"mine"

    assert claim.settle(look)
    return sorted(found)


@contextmanager
def program(text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another program, which has claimed this, and ends with the end of its input."""
    running = subprocess.Popen([sys.executable, "-c", CLAIMING, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"\n"
        yield running
        if running.poll() is None:
            running.communicate()


def test_claims_of_one_process_see_each_other() -> None:
    one, two = Claim("cores"), Claim("cores")
    assert others(one) == []
    assert others(two) == [b"mine"]
    one.close()
    assert others(two) == []
    two.close()
    assert find_runs() == []


def test_a_claim_on_something_else_is_not_counted() -> None:
    cores, memory = Claim("cores"), Claim("memory")
    assert others(cores) == others(memory) == []
    cores.close()
    memory.close()


def test_another_programs_claim_counts_until_it_ends() -> None:
    mine = Claim("cores")
    with program("theirs"):
        assert others(mine) == [b"theirs"]
    assert others(mine) == []
    mine.close()
    assert find_runs() == []


def test_claims_of_a_killed_program_are_released_and_removed() -> None:
    mine = Claim("cores")
    with program("theirs") as killed:
        assert others(mine) == [b"theirs"]
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert others(mine) == []
        assert len(find_runs()) == 1
    mine.close()
    assert find_runs() == []


def test_nobody_waits_for_a_program_that_is_claiming() -> None:
    one, two = Claim("cores"), Claim("cores")
    tried = []

    def decide(claimed: list[bytes]) -> bytes:
        tried.append(two.settle(lambda _: b"meanwhile"))
        return b"mine"

    assert one.settle(decide)
    assert tried == [False]
    assert others(two) == [b"mine"]
    one.close()
    two.close()


def test_a_forked_process_gives_nothing_back() -> None:
    one, two = Claim("cores"), Claim("cores")
    others(one)
    pid = os.fork()
    if pid == 0:
        one.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert others(two) == [b"mine"]
    one.close()
    two.close()


def test_a_closed_claim_cannot_be_used() -> None:
    claim = Claim("cores")
    claim.close()
    with pytest.raises(ValueError, match="this claim is closed"):
        claim.settle(lambda _: b"")
    assert not Path(os.environ["TMPDIR"], f"dragon-{os.getuid()}").exists()


def test_a_name_that_is_no_file_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'\.\./cores' cannot be the name of a claim"):
        Claim("../cores")
