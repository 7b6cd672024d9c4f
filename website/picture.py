"""Make docs/nodes.svg: `dragon top` beside a run over four nodes. `python -m website.picture` makes it anew."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from dragon.cli import watching
from dragon.top import Snapshot, Top, take

PICTURE = Path(__file__).parents[1] / "docs" / "nodes.svg"
_SIZE = 96, 15  # columns and lines
_SHOWN_AFTER = 12.0  # seconds

PROGRAM = """
import time

from dragon.infrastructure.policy import Policy
from dragon.native import Event, Process, Queue
from dragon.native.machine import Node, System

SAMPLES = range(10**6)


def load(samples):
    while True:
        samples.put(sum(SAMPLES[:50_000]))


def train(samples):
    while True:
        time.sleep(0.004 + samples.get() * 0)


if __name__ == "__main__":
    for rank, node in enumerate(System().nodes):
        with Policy(placement=Policy.Placement.HOST_NAME, host_name=Node(node).hostname):
            samples = Queue(maxsize=8)
            for work in load, train:
                Process(work, (samples,), ident=f"{work.__name__}-{rank}").start()
    Event().wait()
"""


async def _screenshot(run: str) -> str:
    """Return the processes of a run as `dragon top` shows them, as SVG."""
    with watching.choose(run) as watched:

        async def look() -> Snapshot:
            seen = await take(watched.ask_soon, time.time())
            run = msgspec.structs.replace(seen.run, command="python train.py")  # without this environment's path
            return msgspec.structs.replace(seen, run=run)

        app = Top(look, 1.0)
        async with app.run_test(size=_SIZE) as pilot:
            await asyncio.sleep(_SHOWN_AFTER)
            await pilot.press("3")
            await asyncio.sleep(2)
            return app.export_screenshot(title="dragon --nodes 4 train.py")


def main() -> None:
    """Run the program, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "dragon", "--nodes", "4", "-T", "4", "train.py"]
        with subprocess.Popen(command, cwd=folder) as program:
            try:
                time.sleep(5)
                svg = asyncio.run(_screenshot(str(program.pid)))
            finally:
                program.terminate()
    # Rich lets readers load a font from another site.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
