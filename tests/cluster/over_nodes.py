"""Runs programs over simulated nodes, with functions that their tests share."""

from __future__ import annotations

import textwrap

from conftest import Site


def run(site: Site, head: str, body: str, nodes: int = 2) -> str:
    """Run a program that begins with `head` over simulated nodes. It must succeed. Returns what it prints."""
    program = site.write(head + textwrap.indent(textwrap.dedent(body), "    "))
    done = site.dragon("--nodes", str(nodes), program, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
