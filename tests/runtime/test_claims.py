"""Claims of several programs on a shared resource: which ones are counted, and their removal when programs end."""

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
    """Return the values of all other claims."""
    found: list[bytes] = []

    def look(claimed: list[bytes]) -> bytes:
        found.extend(claimed)
        return b"mine"

    assert claim.settle(look)
    return sorted(found)


@contextmanager
def program(text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run another program that has a claim with this value and ends with the end of its input."""
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


def test_a_claim_on_another_resource_is_not_counted() -> None:
    cores, memory = Claim("cores"), Claim("memory")
    assert others(cores) == others(memory) == []
    cores.close()
    memory.close()


def test_the_claim_of_another_program_counts_until_it_ends() -> None:
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


def test_settle_returns_at_once_while_another_claim_is_being_settled() -> None:
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


def test_a_forked_child_does_not_release_claims_of_its_parent() -> None:
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


def test_a_claim_with_an_invalid_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'\.\./cores' cannot be the name of a claim"):
        Claim("../cores")
