"""The agent is notified of every change, even if its bell (the notification pipe) is small or full."""

from __future__ import annotations

from conftest import Site

_PROGRAM = """
import asyncio, fcntl, mmap, os
from dragon import _core
from dragon.agent.objects.bell import Bell

async def main(small: bool) -> list[str]:
    folder = f"bells-{small}"
    os.mkdir(folder)
    _core.set_bell_folder(folder)
    bell = _core.agent_bell()
    if small:  # as a user's are who has many
        fcntl.fcntl(bell, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
    told = []
    listening = Bell(lambda offset: told.append("one"), lambda: told.append("any"))
    for size in (8, 1 << 16):
        try:
            while size:
                size -= os.write(bell, (64).to_bytes(8, "little"))
        except BlockingIOError:
            pass
        await asyncio.sleep(0.1)
    asyncio.get_running_loop().remove_reader(bell)
    return told

print([asyncio.run(main(small)) for small in (False, True)])
"""


def test_a_full_bell_notifies_of_a_change_of_any_object(site: Site) -> None:
    done = site.python(_PROGRAM)
    assert done.stdout == "[['one', 'any', 'any'], ['one', 'any']]\n", done.stderr
