"""The head of a running cluster, which starts a worker on each node."""

from __future__ import annotations

from conftest import Site

# A node is lost between the look at the nodes and the start of its worker.
PROGRAM = """
import sys
from pathlib import Path

from dragon.infrastructure.policy import Policy
from torchloader.service import head
from torchloader.service.settings import JOBS, Settings

class System(head.System):
    def hostname_policies(self):
        lost = Policy(placement=Policy.Placement.HOST_NAME, host_name="lost")
        return [lost, *super().hostname_policies()]

head.System = System
Settings(".", 0.0, device="cpu").save()
Path(JOBS).write_text("[]")
sys.exit(head.main(Path.cwd()))
"""


def test_a_node_that_is_lost_before_its_worker_runs_is_left_out(site: Site) -> None:
    done = site.dragon(site.write(PROGRAM))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("torchloader: lost is left out: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_error_about_a_full_disk_names_the_file_in_the_folder_of_the_run(site: Site) -> None:
    program = """
    import os, sys
    from pathlib import Path
    from torchloader.service import head
    from torchloader.service.settings import JOBS, Settings

    Settings(".", 0.0, device="cpu").save()
    Path(JOBS).write_text("[]")
    (Path(os.environ["DRAGON_RUN"]) / "torchloader.json").symlink_to("/dev/full")
    sys.exit(head.main(Path.cwd()))
    """
    done = site.dragon(site.write(program))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("torchloader: /")
    assert line.endswith("/torchloader.json: No space left on device")
