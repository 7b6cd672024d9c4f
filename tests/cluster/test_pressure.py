"""Messages between nodes, when there are more of them than the memory holds (a long run: tests/pressure.py)."""

from __future__ import annotations

import random
from pathlib import Path

from conftest import Site


def test_messages_arrive_once_and_in_order_if_memory_is_short(site: Site) -> None:
    program = Path(__file__).parent.parent / "pressure.py"
    seed = str(random.randrange(10**6))
    done = site.dragon(
        "--nodes", "3", program, "--seconds", "8", "--seed", seed, timeout=150, env={"DRAGON_ARENA_SIZE": "80m"}
    )
    assert done.returncode == 0, (seed, done.stderr)
    assert "messages arrived once and in order" in done.stdout
