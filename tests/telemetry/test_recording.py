"""Recordings: the telemetry that a run writes to files, and the data that can be read afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conftest import Site

pytest.importorskip("pyarrow")

from dragon.telemetry import AnalysisClient, NoRecordingError, Recording

pytestmark = pytest.mark.xdist_group("recording")  # they share a run

QUICK = {"DRAGON_TELEMETRY_PERIOD": "0.1"}
OF_NODES = {"load_average", "cpu_percent", "memory_used", "network_sent", "arena_used"}
OF_PROCESSES = {"process_cpu_percent", "process_memory", "cpu_core_percent"}
ADDS = """
import sys, time
from dragon.telemetry import Telemetry

if __name__ == "__main__":
    telemetry = Telemetry()
    telemetry.add_data("loss", float(sys.argv[1]), tags={"model": "small"})
    time.sleep(float(sys.argv[2]))
"""
# Waits until the files of its run hold something, and then ends its agent the hard way.
KILLS_ITS_AGENT = """
import os, signal, sys, time
from pathlib import Path
from dragon.native.process import Process
from dragon.runtime.run import this_run
from dragon.telemetry import NoRecordingError, Recording, Telemetry

def recorded(name):
    try:
        return name in Recording(sys.argv[1]).names()
    except NoRecordingError:
        return False

if __name__ == "__main__":
    Process(time.sleep, (100,)).start()
    Telemetry().add_data("loss", 0.5)
    while not (recorded("loss") and recorded("process_memory") and len(Recording(sys.argv[1]).lifetimes()) > 1):
        time.sleep(0.05)
    os.kill(this_run().agent.pid, signal.SIGKILL)
"""


def hosts_of(recording: Recording, metric: str) -> set[str]:
    return {tags["host"] for _, tags, _, _ in recording.query([metric], {}, 0, float("inf"), 1, "last")}


@pytest.fixture
def directory(site: Site) -> Path:
    return site.folder / "recordings"


@pytest.fixture(scope="module")
def recorded(shared_site: Site) -> Path:
    """The directory with the recording of a run of two nodes."""
    directory = shared_site.folder / "recordings" / "deeper"
    done = shared_site.dragon("--nodes=2", "--telemetry", directory, shared_site.write(ADDS), "0.5", "3", env=QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    return directory


def test_every_node_is_recorded_at_level_four(recorded: Path) -> None:
    recording = Recording(recorded)
    for metric in OF_NODES | OF_PROCESSES:
        expected = {"node-0"} if metric.startswith("process") else {"node-0", "node-1"}
        assert hosts_of(recording, metric) == expected, metric
    assert recording.description is not None
    assert recording.description.nodes == ["node-0", "node-1"]


def test_a_recording_can_be_queried_like_a_run(recorded: Path) -> None:
    client = AnalysisClient(recorded)
    client.connect()
    assert client.get_metrics() >= OF_NODES | OF_PROCESSES | {"loss"}
    (record,) = client.get_data("loss", {"model": ["small", "large"]})
    assert set(record["tags"]) == {"host", "puid", "model"}
    assert list(record["dps"].values()) == [0.5]
    assert client.get_data("loss", {"model": "large"}) == []
    assert client.get_data("loss", start_time=Recording(recorded).end + 1) == []


def test_a_variable_starts_the_recording_of_a_program_without_the_command(site: Site, directory: Path) -> None:
    done = site.python(ADDS, "0.5", "2", env={**QUICK, "DRAGON_TELEMETRY_DIRECTORY": "recordings"})
    assert (done.returncode, done.stderr) == (0, "")
    assert Recording(directory).names() >= OF_NODES | OF_PROCESSES | {"loss"}


def test_a_run_that_ended_normally_leaves_files_for_its_user_alone(recorded: Path) -> None:
    recording = Recording(recorded)
    assert {path.suffix for path in recording.folder.iterdir()} == {".json", ".parquet"}
    description = json.loads((recording.folder / "run.json").read_text())
    assert description["command"].endswith("program.py 0.5 3")
    assert description["started"] <= recording.end == description["ended"]
    assert [folder.stat().st_mode & 0o777 for folder in (recorded.parent, recorded, recording.folder)] == [0o700] * 3


def test_runs_in_the_same_directory_have_separate_recordings_of_their_levels(site: Site, directory: Path) -> None:
    site.dragon("--telemetry", directory, site.write(ADDS), "0.25", "1")
    site.dragon("--telemetry", directory, "--telemetry-level", "1", site.write(ADDS), "0.5", "0.3", env=QUICK)
    older, newer = sorted(directory.iterdir())
    for path, loss in ((older, 0.25), (newer, 0.5), (directory, 0.5)):
        (record,) = AnalysisClient(path).get_data("loss")
        assert list(record["dps"].values()) == [loss]
    assert Recording(newer).names() == {"loss"} < Recording(older).names()


ENDS_IN_MANY_WAYS = """
import os, sys, time
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process

if __name__ == "__main__":
    there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
    for name, target, arguments in ("fails", sys.exit, (7,)), ("killed", os.abort, ()), ("lives", time.sleep, (99,)):
        process = Process(target, arguments, ident=name, policy=there)
        process.start()
        if name != "lives":
            process.join()
    sys.exit(3)
"""


def test_processes_are_recorded_with_their_exit_codes(site: Site, directory: Path) -> None:
    done = site.dragon("--telemetry", directory, "--nodes", "2", site.write(ENDS_IN_MANY_WAYS))
    assert done.returncode == 3, done.stderr
    found = {one.name: one for one in Recording(directory).lifetimes()}
    assert {name: one.code for name, one in found.items()} == {"head": 3, "fails": 7, "killed": -6, "lives": None}
    assert {name: one.host for name, one in found.items() if name != "head"} == dict.fromkeys(
        ("fails", "killed", "lives"), "node-1"
    )
    assert all(one.ended is not None and one.ended >= one.started for one in found.values())


def test_a_recording_survives_the_kill_of_the_agent(site: Site, directory: Path) -> None:
    site.dragon("--telemetry", directory, site.write(KILLS_ITS_AGENT), directory, env=QUICK)
    recording = Recording(directory)
    assert recording.names() >= OF_NODES | OF_PROCESSES | {"loss"}
    assert recording.damaged == []
    assert {one.ended for one in recording.lifetimes()} == {None}
    assert recording.start < recording.end
    site.kill()


WRITES_ON = """
import resource, shutil, sys, time
from pathlib import Path
from dragon.runtime.run import this_run
from dragon.telemetry import NoRecordingError, Recording, Telemetry

def disturb(folder):
    {disturbance}

def size():
    return sum(path.stat().st_size for path in Path(sys.argv[1]).rglob("*.arrows"))

if __name__ == "__main__":
    telemetry = Telemetry()
    while not size():
        time.sleep(0.05)
    disturb(Recording(sys.argv[1]).folder)
    for number in range(3):
        telemetry.add_data("loss", number)
        time.sleep(2.1)
    print("ran")
"""
HARMS = {
    "full disk": "resource.prlimit(this_run().agent.pid, resource.RLIMIT_FSIZE, (size() + 500,) * 2)",
    "removed directory": "shutil.rmtree(folder)",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_full_disk_or_removed_directory_is_reported_once(site: Site, directory: Path, harm: str) -> None:
    program = site.write(WRITES_ON.replace("{disturbance}", HARMS[harm]))
    done = site.dragon("--telemetry", directory, program, directory, env=QUICK)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr.count("telemetry is not recorded in") == 1, done.stderr
    assert done.stderr.count("\n") == 1
    if harm == "full disk":
        assert Recording(directory).names() >= OF_NODES
    else:
        assert list(directory.iterdir()) == []


def test_a_directory_that_cannot_be_created_is_reported_once_and_the_program_runs(site: Site, directory: Path) -> None:
    directory.write_text("a file")
    done = site.dragon("--telemetry", directory / "x", site.write(ADDS), "0.5", "2.5", env=QUICK)
    assert done.returncode == 0
    assert done.stderr.count("telemetry is not recorded in") == 1, done.stderr
    assert done.stderr.count("\n") == 1


def test_the_error_about_missing_pyarrow_says_how_to_install_it(site: Site, directory: Path) -> None:
    program = site.write("print('ran')")
    words = ["--telemetry", str(directory), str(program)]
    command = f"import sys; sys.modules['pyarrow'] = None; from dragon.cli.main import main; main({words})"
    done = site.run(sys.executable, "-c", command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "dragon: error: --telemetry needs pyarrow: pip install 'dragon-runtime[telemetry]' (usage: dragon --help)\n"
    )


def test_the_agent_does_not_load_arrow_without_a_recording(site: Site) -> None:
    done = site.python(
        """
        from pathlib import Path
        from dragon.runtime.agent_client import ask
        from dragon.runtime.protocol.telemetry import TelemetryLevel
        from dragon.runtime.run import this_run

        ask(TelemetryLevel())
        print("arrow" in Path(f"/proc/{this_run().agent.pid}/maps").read_text())
        """,
        env={"DRAGON_TELEMETRY_LEVEL": "4"},
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("made", [True, False])
def test_the_error_about_a_missing_recording_says_how_to_make_one(tmp_path: Path, made: bool) -> None:
    place = tmp_path if made else tmp_path / "absent"
    with pytest.raises(NoRecordingError, match="dragon --telemetry" if made else "there is no folder"):
        AnalysisClient(place)
