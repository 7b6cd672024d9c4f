"""The PBS launchers, with scripts in place of `mpiexec` and `pbsdsh` that start agents as the real commands do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from conftest import Site

OVER = Path(__file__).with_name("over.py")

# PALS hands the environment on, and numbers the ranks; its standard input is the first rank's only.
MPIEXEC = """\
#!/bin/sh
test "$1 $3 $4 $5 $7 $8" = "--np --ppn 1 --hosts --cpu-bind none" || exit 99
count=$2; shift 8; rank=0
while [ $rank -lt $count ]; do PALS_RANKID=$rank "$@" < /dev/null & rank=$((rank + 1)); done
wait
"""
# PBS starts a task with the environment of the job, and nothing on its standard input.
PBSDSH = """\
#!/bin/sh
test "$1 $3" = "-n --" || exit 99
echo "$2" >> slots; shift 3
exec env -i DRAGON_TEST_MARK=$DRAGON_TEST_MARK PBS_JOBID=1 "$@" < /dev/null
"""


@pytest.fixture
def job(site: Site) -> dict[str, str]:
    """The environment of a job on three nodes with two slots each."""
    (site.folder / "nodes").write_text("".join(f"node-{number}\n" * 2 for number in range(3)))
    (site.folder / "home").mkdir()
    return {"PBS_NODEFILE": str(site.folder / "nodes"), "HOME": str(site.folder / "home"), "PBS_JOBID": "1"}


def command_in(site: Site, name: str, folder: str, text: str) -> str:
    """Write the command into a folder, and return a PATH that begins with this folder."""
    place = site.folder / folder
    place.mkdir(parents=True)
    (place / name).write_text(text)
    (place / name).chmod(0o755)
    return f"{place}:{os.environ['PATH']}"


def over(*command: str) -> list[str | Path]:
    return [sys.executable, "-W", "error", OVER, "{}", "{}", *command]


def test_pals_is_detected_and_starts_all_agents(site: Site, job: dict[str, str]) -> None:
    path = command_in(site, "mpiexec", "opt/pals/bin", MPIEXEC)
    done = site.run(*over("sh", "-c", 'echo $INDEX $NODES | wc -w; echo "$DRAGON_JOIN"'), env={**job, "PATH": path})
    assert done.stdout == "4\n\ncode 0\n", done.stderr


def test_a_failure_of_pals_is_reported(site: Site, job: dict[str, str]) -> None:
    path = command_in(site, "mpiexec", "opt/pals/bin", "#!/bin/sh\necho no such host >&2; exit 3\n")
    done = site.run(*over("true"), env={**job, "PATH": path})
    assert done.stderr == "launch failed: mpiexec ended with code 3:\nno such host\n"


def test_plain_pbs_leaves_no_token_in_a_file(site: Site, job: dict[str, str]) -> None:
    path = command_in(site, "pbsdsh", "bin", PBSDSH)
    listing = "echo $INDEX $NODES | wc -w; find $HOME -type f"
    done = site.run(*over("sh", "-c", listing), env={**job, "PATH": path})
    assert done.stdout == "4\ncode 0\n", done.stderr
    assert sorted((site.folder / "slots").read_text().split()) == ["0", "2", "4"]
    assert list((site.folder / "home").iterdir()) == []


def test_a_killed_front_end_leaves_no_token_in_a_file(site: Site, job: dict[str, str]) -> None:
    path = command_in(site, "pbsdsh", "bin", PBSDSH)
    process = site.start(*over("sh", "-c", "echo ready; exec sleep 1"), env={**job, "PATH": path})
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate(timeout=30)
    assert list((site.folder / "home").iterdir()) == []
