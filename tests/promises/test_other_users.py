"""Another user of the machine who knows a run's name cannot put data of theirs in the place of the run's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from conftest import Site

PROGRAM = """
    import sys
    from dragon.data.ddict import DDict
    from dragon.runtime.run import this_run

    print(this_run().folder.name, flush=True)
    sys.stdin.readline()
    try:
        dictionary = DDict(1, 1, 2**26)
        dictionary["key"] = "value"
        print(dictionary["key"])
    except Exception as error:
        print("refused", "not a private folder" in str(error))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, to be another user")
@pytest.mark.parametrize("kind", ["folder", "link", "file"])
@pytest.mark.parametrize("places", [1, 2])
def test_a_folder_that_another_user_made_first_is_not_used(site: Site, kind: str, places: int, tmp_path: Path) -> None:
    temporary = site.folder / "t"
    temporary.mkdir()
    program = site.start(
        sys.executable,
        site.write(PROGRAM),
        stdin=-1,
        env={"TMPDIR": str(temporary)},
    )
    assert program.stdout is not None
    name = program.stdout.readline().strip()
    made = [Path(base) / f"dragon-0.{name}" for base in ("/dev/shm", str(temporary))[:places]]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for each in made:
        if kind == "folder":
            each.mkdir(mode=0o777)
        elif kind == "link":
            each.symlink_to(elsewhere)
        else:
            each.write_text("")
        os.chown(each, 54321, 54321, follow_symlinks=False)
    try:
        out, err = program.communicate("\n", timeout=60)
        assert (out, err) == ("value\n" if places == 1 else "refused True\n", "")
        assert not list(elsewhere.iterdir())
    finally:
        for each in made:
            if kind == "folder":
                shutil.rmtree(each, ignore_errors=True)  # root's run may have removed it
            else:
                each.unlink(missing_ok=True)
