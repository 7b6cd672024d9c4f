"""The output of a process on any node, as its creator reads it from a stream that is a PIPE."""

from __future__ import annotations

import json

import pytest

from conftest import Site

PROGRAM = """
    import json, sys
    from dragon.native.machine import System
    from dragon.native.process import MSG_PIPE, Process

    last_node = System().hostname_policies()[-1]
    process = Process(sys.executable, ["-c", r"import os; os.write(1, WRITTEN)"], stdout=MSG_PIPE, policy=last_node)
    process.start()
    received = []
    try:
        while True:
            received.append(process.stdout_conn.recv())
    except EOFError:
        print(json.dumps(received))
"""

pytestmark = pytest.mark.parametrize("nodes", ["1", "2"])


def received(site: Site, nodes: str, written: str) -> list[str]:
    """Return the output of a process that writes `written`, a Python expression for bytes."""
    done = site.dragon("--nodes", nodes, site.write(PROGRAM.replace("WRITTEN", written)))
    result: list[str] = json.loads(done.stdout)
    return result


def test_a_line_ends_at_its_newline(site: Site, nodes: str) -> None:
    line = "form feed \x0c, next line \x85, line separator \u2028\n"
    assert received(site, nodes, f"{(line + 'next').encode()}") == [line, "next"]


def test_a_line_that_arrives_in_parts_keeps_all_its_characters(site: Site, nodes: str) -> None:
    assert "".join(received(site, nodes, f"b'-' + {'é'.encode()} * 40_000")) == "-" + "é" * 40_000


def test_an_incomplete_character_at_the_end_becomes_a_replacement_character(site: Site, nodes: str) -> None:
    assert received(site, nodes, f"{'é'.encode()[:1]}") == ["\N{REPLACEMENT CHARACTER}"]
