"""Killed masters: jobs finish, and the next master has their state."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from clusters import TORCHLOADER, Cluster

from conftest import Site

_BEGIN = """
import base64, os, sys
from dragon.runs import choose, find
from dragon.native.queue import Queue
from torchloader.service import messages

((run, found),) = messages.contacts(node.folder for node in choose(sys.argv[1], find()).nodes).items()
"""
# Takes what is in the inbox of a master that is stopped, up to a message of a kind.
TAKE = f"""{_BEGIN}
os.environ["DRAGON_RUN"] = str(run)
inbox = Queue.attach(base64.b64decode(found.inbox))
while not isinstance(inbox.get(timeout=30), getattr(messages, sys.argv[2])):
    pass
"""
# Sends the master a command, and does not wait for long.
COMMAND = f"""{_BEGIN}
messages._CONTACT_TIMEOUT_S = 0.01
try:
    messages.request(run, found, messages.GetStatus())
except messages.NoMasterError:
    pass
"""
ALONE = ("--device", "cpu", "--cores", "8", "--mode", "1")


@pytest.fixture
def cluster(site: Site) -> Iterator[Cluster]:
    cluster = Cluster(site)
    yield cluster
    cluster.close()


@pytest.mark.parametrize(
    ("deed", "command", "state", "code"),
    [
        ("wait", None, "finished", 0),
        ("wait", "cancel", "cancelled", 0),
        ("wait and raise", None, "failed", 1),
    ],
)
def test_the_end_of_a_job_is_recorded_although_its_master_was_killed_with_the_message(
    cluster: Cluster, deed: str, command: str | None, state: str, code: int
) -> None:
    cluster.start(cluster.job("job", 10, 0.001, 0.01, deed), options=ALONE)
    cluster.until_state("job", "running")
    cluster.until_iteration("job", 5)
    if command is not None:
        assert cluster.command(command, "job").returncode == 0
    _end_unheard(cluster)
    assert cluster.end() == code, cluster.err
    assert cluster.states("job") == ["queued", "starting", "running", state]
    if state == "failed":
        assert "RuntimeError: the gradient is not a number" in cluster.reason("job")
    else:
        assert cluster.events()[-1]["details"]["progress"] == (10 if state == "finished" else 6)


def test_a_job_that_a_killed_master_received_but_did_not_record_is_run(cluster: Cluster) -> None:
    early, late = cluster.job("early", 10, 0.001, 0.01, "wait"), cluster.job("late", 10, 0.001, 0.01, arrival=15)
    cluster.start(early, late, options=ALONE)
    cluster.until_state("early", "running")
    cluster.signal("master", signal.SIGSTOP)
    _do(cluster, TAKE, "Submitted")
    cluster.kill("master")
    cluster.go()
    assert cluster.end() == 0, cluster.err
    assert cluster.states("late")[-1:] == ["finished"]


def test_a_folder_belongs_to_one_run_from_its_start(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 10, 0.001, 0.01), options=ALONE)
    assert cluster.process is not None
    assert cluster.process.stdout is not None
    cluster.process.stdout.readline()  # that tells the folder; there is no master yet
    other = cluster.site.write(cluster.job("other", 10, 0.001, 0.01), "other.toml")
    done = cluster.site.run(*TORCHLOADER, "run", str(other), "--folder", str(cluster.folder), *ALONE)
    assert done.returncode == 2
    assert done.stderr == f"torchloader: {cluster.folder}: another run has this folder; give each its own\n"
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[-1:] == ["finished"]


def test_status_watch_ends_with_the_run_although_the_master_is_stopped(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 1000, 0.001, 0.01), options=ALONE)
    cluster.until_state("job", "running")
    assert cluster.process is not None
    watch = cluster.site.start(*TORCHLOADER, "status", "--watch", "--json", "--run", str(cluster.process.pid))
    assert watch.stdout is not None
    watch.stdout.readline()
    os.kill(cluster.processes()["master"], signal.SIGSTOP)
    time.sleep(1.5)  # it is asked again after a second
    cluster.process.terminate()
    cluster.end()
    assert watch.communicate(timeout=30)[1] == ""
    assert watch.returncode == 0


def test_a_job_is_paused_although_its_master_was_killed_during_the_pause(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 10, 0.001, 0.01, "wait"), options=ALONE)
    cluster.until_state("job", "running")
    cluster.until_iteration("job", 5)
    assert cluster.command("pause", "job").returncode == 0
    _end_unheard(cluster)
    cluster.until_state("job", "paused")
    assert cluster.command("resume", "job").returncode == 0
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[3:] == ["pausing", "paused", "resuming", "running", "finished"]
    assert cluster.samples("job") == list(range(40))


def _end_unheard(cluster: Cluster) -> None:
    """Let the rank end; kill the master after it has received the message about the end."""
    cluster.signal("master", signal.SIGSTOP)
    cluster.go()
    _do(cluster, TAKE, "Ended")
    cluster.kill("master")


def _do(cluster: Cluster, program: str, *words: str) -> None:
    assert cluster.process is not None
    done = cluster.site.python(program, str(cluster.process.pid), *words)
    assert done.returncode == 0, done.stderr


def test_the_end_of_a_job_is_recorded_while_its_master_waits_for_nodes(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("job", 10, 0.001, 0.01, "wait", devices={"node-0": [0]}),
        options=("--device", "cpu", "--rehearse", "--nodes", "2", "--cores", "4", "--mode", "1"),
    )
    cluster.until_state("job", "running")
    cluster.until_iteration("job", 5)
    cluster.signal("application master on node-1", signal.SIGSTOP)
    before = cluster.processes()["master"]
    cluster.kill("master")
    cluster.until(lambda: cluster.processes().get("master", before) != before)
    cluster.go()
    cluster.until(lambda: "job-rank0-1" not in cluster.processes())
    cluster.signal("application master on node-1", signal.SIGCONT)
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job") == ["queued", "starting", "running", "finished"]


def test_a_queued_job_is_started_by_the_next_master(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("first", 10, 0.001, 0.01, "wait", devices=[[99]]),
        cluster.job("second", 10, 0.001, 0.01, devices=[[99]]),
        options=("--device", "cpu", "--cores", "1", "--mode", "1"),
    )
    cluster.until_state("first", "running")
    cluster.until_state("second", "queued")
    cluster.kill("master")
    cluster.go()
    assert cluster.end() == 0, cluster.err
    assert cluster.states("second") == ["queued", "starting", "running", "finished"]


def test_a_job_continues_on_another_node_although_its_master_was_killed_too(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("job", 400, 0.001, 0.02, devices={"node-1": [0]}),
        options=("--device", "cpu", "--rehearse", "--nodes", "2", "--cores", "4", "--mode", "1"),
    )
    cluster.until_iteration("job", 5)
    cluster.signal("master", signal.SIGSTOP)
    cluster.kill_agent(1)
    cluster.kill("master")
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[2:] == ["running", "queued", "starting", "running", "finished"]
    assert sorted(set(cluster.samples("job"))) == list(range(1600))


def test_a_workload_that_was_requested_to_stop_stops_with_the_next_master(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 10, 0.001, 0.01, "wait"), options=(*ALONE, "--hold"))
    cluster.until_state("job", "running")
    assert cluster.command("stop").returncode == 0
    cluster.kill("master")
    cluster.go()
    assert cluster.end() == 0, cluster.err


def test_a_master_continues_if_a_client_does_not_wait_for_the_reply(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 10, 0.001, 0.01, "wait"), options=ALONE)
    cluster.until_state("job", "running")
    cluster.signal("master", signal.SIGSTOP)
    _do(cluster, COMMAND)
    cluster.signal("master", signal.SIGCONT)
    cluster.go()
    assert cluster.end() == 0
    assert cluster.err == ""


def test_a_job_whose_rank_was_killed_before_training_is_restarted(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("once", 10, 0.001, 0.01, "wait at first"),
        cluster.job("twice", 10, 0.001, 0.01, "wait at first"),
        options=(*ALONE, "--retries", "1"),
    )
    cluster.until_state("twice", "starting")
    for rank in ("once-rank0-1", "twice-rank0-1", "twice-rank0-2"):
        cluster.until(lambda rank=rank: rank in cluster.processes())  # type: ignore[misc]
        cluster.kill(rank)
    cluster.until_state("twice", "failed")
    cluster.go()
    assert cluster.end() == 1
    assert cluster.states("once") == ["queued", "starting", "queued", "starting", "running", "finished"]
    assert cluster.states("twice") == ["queued", "starting", "queued", "starting", "failed"]
    assert "ended with signal SIGKILL" in cluster.reason("twice")


def test_a_failed_job_is_not_restarted_when_its_other_ranks_are_ended(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 10, 0.001, 0.01, "rank 0 raises", devices=2), options=ALONE)
    assert cluster.end() == 1
    assert cluster.states("job") == ["queued", "starting", "running", "failed"]
    assert "RuntimeError: the gradient is not a number" in cluster.reason("job")


def test_the_next_master_reports_a_damaged_log_once(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 100_000, 0.001, 0.01), options=ALONE)
    cluster.until_state("job", "running")
    log = cluster.folder / "events.jsonl"
    master = cluster.processes()["master"]
    os.kill(master, signal.SIGSTOP)  # it writes nothing while the log is changed
    # Of the same length, and a line that can still be shown.
    log.write_bytes(log.read_bytes().replace(b'"sequence":2', b'"sequence":7'))
    os.kill(master, signal.SIGKILL)
    assert cluster.end() == 1
    assert f"torchloader: {log}, line 2: event 7 follows event 1;" in cluster.err
    assert cluster.err.count("the master exited with code") == 1
    assert "Traceback" not in cluster.err


def test_status_watch_shows_the_end_of_a_job_of_unknown_length(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 400, 0.001, 0.02).replace("iterations = 400\n", ""), options=ALONE)
    cluster.until_state("job", "running")
    assert cluster.process is not None
    watch = cluster.site.start(*TORCHLOADER, "status", "--watch", "--json", "--run", str(cluster.process.pid))
    assert cluster.end() == 0, cluster.err
    output, errors = watch.communicate(timeout=30)
    assert (watch.returncode, errors) == (0, "")
    (job,) = json.loads(output.splitlines()[-1])["applications"]
    assert (job["state"], job["workers"], job["iterations"]) == ("finished", 0, None)
