"""Other runs start and end, and `dragon ps` works, whatever the description of a run contains."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings

from conftest import Site
from dragon.runtime.run_info import RunInfo, UnreadableRunError
from fuzz.mutation import EXAMPLES, mutated

OWNER = [os.getpid(), 12345]
DESCRIPTIONS = [
    json.dumps(described).encode()
    for described in (
        [OWNER, OWNER, 3, "python x.py", 0, "", 1.5],
        [OWNER, OWNER, 3, "", 0, "n", 0.0, [OWNER, "m"]],
        [[2**22 - 1, 0], 99],
        {"owner": OWNER, "agent": OWNER, "arena_fd": 3},
        [],
        None,
    )
]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(description=mutated(DESCRIPTIONS))
@example(description=DESCRIPTIONS[0].replace(b"python", b"\xff"))
def test_a_description_of_a_run_is_read_or_refused(tmp_path: Path, description: bytes) -> None:
    described = tmp_path / "run.json"
    described.unlink(missing_ok=True)
    described.write_bytes(description)
    described.chmod(0o600)
    try:
        found = RunInfo.read(tmp_path)
    except UnreadableRunError:
        return
    assert isinstance(found.agent.pid, int)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(description=mutated(DESCRIPTIONS))
def test_another_run_starts_beside_an_invalid_description(site: Site, description: bytes) -> None:
    base = Path(site.environment["XDG_RUNTIME_DIR"]) / f"dragon-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    folder = base / f"{os.getpid()}-1-{os.stat('/proc/self/ns/pid').st_ino:x}-abcdef"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "run.json").write_bytes(description)
    (folder / "run.json").chmod(0o600)
    done = site.dragon(site.write("print('started')"))
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
    assert site.dragon("ps").returncode == 0
    shutil.rmtree(base, ignore_errors=True)
