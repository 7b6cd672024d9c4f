"""A workload on a run: jobs are started, resized, paused and resumed, and survive killed processes and lost nodes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from clusters import PROGRAMS, TORCHLOADER, Cluster

from conftest import Site
from torchloader.scheduling.log import replay

WaitUntil = Callable[[Callable[[], object]], None]

NOTHING_RUNS = "torchloader: no workload runs on this machine; `torchloader run WORKLOAD` starts one\n"


@pytest.fixture
def cluster(site: Site) -> Iterator[Cluster]:
    cluster = Cluster(site)
    yield cluster
    cluster.close()


def in_order(samples: list[int]) -> bool:
    """Return whether no sample is missing, repeated or out of order."""
    return samples == list(range(len(samples)))


def test_jobs_run_from_their_arrival_to_their_end(cluster: Cluster) -> None:
    jobs = cluster.job("first", 40, 0.001, 0.01), cluster.job("second", 40, 0.001, 0.01, arrival=0.5)
    cluster.start(*jobs, options=("--device", "cpu", "--cores", "8", "--mode", "1"))
    assert cluster.end() == 0, cluster.err
    for name in ("first", "second"):
        assert cluster.states(name) == ["queued", "starting", "running", "finished"]
        assert in_order(cluster.samples(name))
        record = replay(cluster.folder / "events.jsonl")[name]
        assert (record.state, record.progress) == ("finished", 40)
    assert "second" in cluster.out
    assert (cluster.folder / "pace.csv").read_text().startswith("time,application,iteration,samples_per_second")


def test_workers_move_to_the_job_that_waits_for_data(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("waits", 100_000, 0.02, 0.01, workers=4), cluster.job("computes", 100_000, 0.001, 0.01, workers=4)
    )

    def moved() -> bool:
        workers = {
            event["application"]: event["details"].get("workers")
            for event in cluster.events()
            if event["to"] == "resizing"
        }
        return workers.get("waits", 0) >= 6 and workers.get("computes", 8) <= 2

    cluster.until(moved)
    shown = cluster.command("status")
    assert "8 of 8 cores load" in shown.stdout
    for name in ("waits", "computes"):
        assert cluster.command("cancel", name).returncode == 0
    assert cluster.end() == 0
    assert cluster.states("waits")[-1] == "cancelled"
    assert in_order(cluster.samples("waits"))


def test_nodes_with_idle_cores_load_data_for_a_job_on_another_node(cluster: Cluster) -> None:
    pytest.importorskip("torch")
    job = cluster.job("job", workers=4, script=str(PROGRAMS / "tells_where.py"), arguments=["2"], iterations=100_000)
    rehearsal = ("--device", "cpu", "--cores", "2", "--rehearse", "--nodes", "2", "--mode", "1")
    cluster.start(job, options=(*rehearsal, "--anywhere"))
    cluster.until_state("job", "running")
    assert "4x1, 2 away" in cluster.command("status").stdout
    refused = cluster.command("resize", "job", "5")
    assert "the run has cores for at most 4 loading workers per device of job, not 5" in refused.stderr
    assert cluster.command("resize", "job", "3").stdout == "job gets 3 loading workers per device\n"
    assert "3x1, 1 away" in cluster.command("status").stdout
    cluster.until_state("job", "running")
    (cluster.site.folder / "out" / "go").touch()
    assert cluster.end() == 0, cluster.err
    assert (cluster.site.folder / "out" / "job.txt").read_text() == "True node-0 node-1"
    assert "4 loading workers per device; some of them on node-1" in cluster.out


def test_a_paused_job_continues_where_it_stopped(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 150, 0.001, 0.02), options=("--device", "cpu", "--cores", "8", "--mode", "1"))
    cluster.until_iteration("job", 5)
    assert cluster.command("pause", "job").stdout == "job is pausing\n"
    cluster.until_state("job", "paused")
    assert "paused" in cluster.command("status").stdout
    assert "0 of 8 cores load" in cluster.command("status").stdout
    assert cluster.command("resume", "job").returncode == 0
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[2:] == ["running", "pausing", "paused", "resuming", "running", "finished"]
    assert in_order(cluster.samples("job"))
    assert len(cluster.samples("job")) == 600


def test_a_long_job_is_preempted_by_a_short_one_and_continues_where_it_stopped(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("long", 400, 0.001, 0.02, minimum=4),
        cluster.job("short", 10, 0.001, 0.02, minimum=4, arrival=3.0),
        options=("--device", "cpu", "--cores", "4", "--order", "srtf"),
    )
    cluster.until_state("long", "running")
    assert "policy proportional+srtf;" in cluster.command("status").stdout
    assert cluster.end() == 0, cluster.err
    assert cluster.states("long")[2:] == ["running", "pausing", "paused", "resuming", "running", "finished"]
    ended = {event["application"]: event["time"] for event in cluster.events() if event["to"] == "finished"}
    assert ended["short"] < ended["long"]
    assert in_order(cluster.samples("long"))


def test_invalid_commands_are_refused_with_a_reason(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 100_000, 0.001, 0.01), options=("--device", "cpu", "--cores", "4", "--mode", "1"))
    cluster.until_state("job", "running")
    for words, told in (
        (("pause", "nobody"), "there is no application 'nobody'; there are: job"),
        (("resume", "job"), "job is running: only a paused application can be resumed"),
        (("resize", "job", "0"), "needs at least one loading worker per device, not 0"),
        (("resize", "job", "9"), "has cores for at most 4 loading workers per device of job, not 9"),
    ):
        done = cluster.command(*words)
        assert done.returncode == 1
        assert told in done.stderr
    assert cluster.command("resize", "job", "4").stdout == "job gets 4 loading workers per device\n"
    cluster.until(lambda: cluster.reason("job") == "all its ranks have their workers")
    assert json.loads(cluster.command("status", "--json").stdout)["applications"][0]["workers"] == 4
    cluster.command("cancel", "job")
    assert cluster.end() == 0


def test_jobs_can_be_submitted_to_a_workload_that_is_held_open(cluster: Cluster) -> None:
    jobs = cluster.job("first", 5, 0.001, 0.01), cluster.job("late", 5, 0.001, 0.01, arrival=100_000)
    cluster.start(*jobs, options=("--device", "cpu", "--cores", "8", "--hold"))
    cluster.until_state("first", "finished")
    for name, given in (("second", "second"), ("second", "second-2"), ("late", "late-2")):
        path = cluster.site.write(cluster.job(name, 5, 0.001, 0.01), "more.toml")
        other = "" if given == name else f"; there is another {name}"
        assert cluster.command("submit", str(path)).stdout == f"{given} is starting{other}\n"
        cluster.until_state(given, "finished")
    settings = cluster.folder / "settings.json"
    settings.rename(cluster.folder / "kept.json")
    settings.symlink_to("/dev/full")
    assert cluster.command("stop").stderr == f"torchloader: {settings}: No space left on device\n"
    (cluster.folder / "kept.json").replace(settings)
    assert cluster.command("stop").returncode == 0
    assert cluster.end() == 0
    assert cluster.err == ""


def test_jobs_continue_if_stdout_is_closed(cluster: Cluster) -> None:
    path = cluster.site.write(cluster.job("job", 20, 0.001, 0.01), "jobs.toml")
    told = ("run", str(path), "--folder", str(cluster.folder), "--device", "cpu", "--cores", "8")
    run = cluster.site.run("sh", "-c", '"$@" | head -1', "sh", *TORCHLOADER, *told)
    assert run.stdout == f"the event log and the measurements are in {cluster.folder}\n"
    log = cluster.folder / "events.jsonl"
    assert run.stderr == f"torchloader: stdout cannot be written: Broken pipe; what happens is in {log}\n"
    assert cluster.states("job")[-1] == "finished"


def test_a_command_that_timed_out_is_not_executed_later(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 5, 0.001, 0.01), options=("--device", "cpu", "--cores", "8", "--hold"))
    cluster.until_state("job", "finished")
    path = cluster.site.write(cluster.job("late", 5, 0.001, 0.01), "more.toml")
    cluster.signal("master", signal.SIGSTOP)
    assert "the master did not answer in 15 s" in cluster.command("submit", str(path)).stderr
    cluster.signal("master", signal.SIGCONT)
    assert cluster.command("submit", str(path)).stdout == "late is starting\n"
    assert cluster.command("stop").returncode == 0
    assert cluster.end() == 0


def test_a_job_whose_rank_is_killed_during_a_pause_is_paused(cluster: Cluster) -> None:
    cluster.start(cluster.job("job", 10, 0.001, 0.01, "wait"))
    cluster.until_state("job", "running")
    cluster.until_iteration("job", 5)
    assert cluster.command("pause", "job").returncode == 0
    cluster.kill("job-rank0-1")
    cluster.until_state("job", "paused")
    cluster.go()
    assert cluster.command("resume", "job").returncode == 0
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[3:] == ["pausing", "paused", "resuming", "running", "finished"]


def test_a_program_without_a_session_runs_until_it_ends(cluster: Cluster) -> None:
    # Its loading workers would give way to it.
    checks = "assert os.environ['RANK'] in '01' and os.environ['TORCHLOADER_NICE'] == '10'"
    good = cluster.site.write(f"import os, time; time.sleep(3); {checks}", "good.py")
    bad = cluster.site.write("raise ValueError('no such data set')", "bad.py")
    cluster.start(
        cluster.job("good", script=str(good), arguments=[], devices=2),
        cluster.job("bad", script=str(bad), arguments=[]),
        options=("--device", "cpu", "--cores", "8", "--silence", "1"),
    )
    assert cluster.end() == 1
    assert cluster.states("good") == ["queued", "starting", "finished"], cluster.reason("good")
    assert cluster.states("bad")[-1] == "failed"
    assert "no such data set" in cluster.reason("bad")


def test_commands_without_a_workload_report_one_error(site: Site) -> None:
    cluster = Cluster(site)
    jobs = site.write("\n".join(cluster.job(name, 5, 0.001, 0.01) for name in ("first", "second")), "jobs.toml")
    for words in (["status"], ["submit", str(jobs)]):
        done = cluster.command(*words)
        assert done.returncode == 1
        assert done.stderr == NOTHING_RUNS


def test_a_failed_job_has_a_reason_and_the_others_continue(cluster: Cluster) -> None:
    reasons = {
        "crash": "ended with exit code 1; it last wrote:\nno such data set",
        "raise": "RuntimeError: the gradient is not a number",
        "hang": "no rank has reported anything for 8 s",
        "write": "/dev/full",
    }
    cluster.start(
        *(cluster.job(name, 50, 0.001, 0.01, name) for name in ("crash", "raise", "hang")),
        cluster.job("write", 50, 0.001, 0.01, output_folder="/dev/full"),
        cluster.job("good", 100, 0.001, 0.02),
        options=("--device", "cpu", "--cores", "10", "--silence", "8"),
    )
    assert cluster.end() == 1
    for name, reason in reasons.items():
        assert cluster.states(name)[-1] == "failed"
        assert reason in cluster.reason(name)
    assert cluster.states("good")[-1] == "finished"


@pytest.mark.parametrize(
    "victim", ["job-rank0-1", "application master on", "worker on", "worker on and application master on", "master"]
)
def test_a_job_finishes_although_processes_are_killed(cluster: Cluster, victim: str) -> None:
    cluster.start(cluster.job("job", 350, 0.001, 0.02))
    cluster.until_iteration("job", 20)
    processes = cluster.processes()
    for each in victim.split(" and "):
        # The head ends the application master of a killed worker, at times before the next kill.
        with contextlib.suppress(ProcessLookupError):
            os.kill(next(pid for name, pid in processes.items() if name.startswith(each)), signal.SIGKILL)
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[-1] == "finished"
    # What was done since the last look at its place may be done again, in the same order; nothing is left out.
    samples = cluster.samples("job")
    assert sorted(set(samples)) == list(range(1400))
    if victim == "master":
        assert in_order(samples)
        assert "queued" not in cluster.states("job")[1:]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("victim", ["job-rank0-1", "application master on"])
def test_workers_that_hang_in_the_dataset_end_when_their_rank_is_killed(
    cluster: Cluster, victim: str, method: str
) -> None:
    cluster.start(cluster.job("job", 5, 1000.0, 0.01, method), options=("--device", "cpu", "--cores", "8", "--hold"))

    def workers() -> set[psutil.Process]:
        processes = cluster.processes()
        if method == "spawn":
            return {psutil.Process(pid) for name, pid in processes.items() if name.startswith("loading_worker_")}
        return set(psutil.Process(processes["job-rank0-1"]).children(recursive=True))

    cluster.until_state("job", "running")
    cluster.until(lambda: len(workers()) >= 2)
    hanging = workers()
    cluster.kill(next(name for name in cluster.processes() if name.startswith(victim)))
    cluster.until(lambda: not any(worker.is_running() for worker in hanging))


@pytest.mark.parametrize("seed", range(2))
def test_a_job_finishes_although_masters_are_killed_during_commands(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    cluster.start(cluster.job("job", 300, 0.001, 0.02), options=("--device", "cpu", "--cores", "8", "--mode", "1"))
    cluster.until_iteration("job", 5)
    for _ in range(2):
        words = chance.choice([("resize", "job", str(chance.randint(1, 8))), ("pause", "job")])
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(cluster.command, *words)
            cluster.until(lambda: "master" in cluster.processes())
            time.sleep(chance.uniform(0, 1))
            cluster.kill("master")
            # It is answered by this master or the next, or says that there was none.
            assert "Traceback" not in answer.result().stderr
    cluster.until(lambda: cluster.command("status").returncode == 0)

    def goes_on() -> bool:
        cluster.command("resume", "job")
        return cluster.states("job")[-1] not in ("pausing", "paused")

    cluster.until(goes_on)
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[-1] == "finished"
    assert in_order(cluster.samples("job"))
    assert len(cluster.samples("job")) == 1200


def test_later_jobs_are_submitted_although_the_submitter_is_killed(cluster: Cluster) -> None:
    cluster.start(cluster.job("first", 5, 0.001, 0.01), cluster.job("second", 5, 0.001, 0.01, arrival=20))
    cluster.until(lambda: cluster.states("first") != [])
    cluster.kill("submitter")
    assert cluster.end() == 0, cluster.err
    assert cluster.states("second")[-1] == "finished"


def test_an_interrupted_run_can_be_continued_in_the_same_folder(cluster: Cluster) -> None:
    job = cluster.job("job", 200, 0.001, 0.02)
    cluster.start(job)
    cluster.until_iteration("job", 10)
    cluster.interrupt()
    assert cluster.end() == 130
    workload = cluster.site.folder / "jobs.toml"
    again = f"torchloader run {workload} --folder {cluster.folder} --device cpu --cores 8"
    assert cluster.err.splitlines()[-1] == f"torchloader: ended by SIGINT; to continue: {again}"
    assert "Traceback" not in cluster.err
    cluster.start(job)
    assert cluster.end() == 0, cluster.err
    assert sorted(set(cluster.samples("job"))) == list(range(800))


def test_jobs_of_a_lost_node_continue_on_others_or_fail_with_a_reason(cluster: Cluster) -> None:
    options = ("--device", "cpu", "--rehearse", "--nodes", "2", "--cores", "4", "--mode", "1")
    cluster.start(
        cluster.job("stays", 100, 0.001, 0.02, devices={"node-0": [0]}, maximum=1),
        cluster.job("moves", 100, 0.001, 0.02, "wait", devices={"node-1": [0]}, maximum=1),
        cluster.job("wide", 100, 0.001, 0.02, "wait", devices=[[1], [1]], maximum=1),
        options=options,
    )
    for name in ("stays", "moves", "wide"):
        cluster.until_iteration(name, 5)
    cluster.kill_agent(1)
    cluster.until_state("wide", "failed")
    cluster.go()
    assert cluster.end() == 1
    assert cluster.states("stays") == ["queued", "starting", "running", "finished"]
    assert cluster.states("moves")[2:] == ["running", "queued", "starting", "running", "finished"]
    assert sorted(set(cluster.samples("moves"))) == list(range(400))
    assert cluster.states("wide")[-1] == "failed"
    assert "node node-1 is lost" in cluster.reason("wide")
    assert "it needs 2 nodes; the run has 1 node (node-0 with 4 devices)" in cluster.reason("wide")


def test_a_paused_job_whose_node_is_lost_is_resumed_on_another_node(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("job", 400, 0.001, 0.01, devices={"node-1": [0]}),
        cluster.job("other", 10, 0.001, 0.01, "wait", devices={"node-0": [1]}),
        options=("--device", "cpu", "--rehearse", "--nodes", "2", "--cores", "4", "--mode", "1"),
    )
    cluster.until_iteration("job", 5)
    assert cluster.command("pause", "job").returncode == 0
    cluster.until_state("job", "paused")
    cluster.kill_agent(1)
    cluster.until(lambda: "worker on node-1" not in cluster.processes())
    assert cluster.command("resume", "job").returncode == 0
    cluster.go()
    assert cluster.end() == 0, cluster.err
    assert cluster.states("job")[-1] == "finished"
    assert cluster.samples("job") == list(range(1600))


def test_a_job_that_needs_more_than_the_nodes_have_fails_with_its_needs(cluster: Cluster) -> None:
    cluster.start(
        cluster.job("elsewhere", 5, 0.001, 0.01, devices={"d3093": [0]}),
        cluster.job("wide", 5, 0.001, 0.01, devices=[[0], [0]]),
        cluster.job("here", 5, 0.001, 0.01),
    )
    assert cluster.end() == 1
    assert "it needs the host d3093; the run has 1 node" in cluster.reason("elsewhere")
    assert "it needs 2 nodes; the run has 1 node" in cluster.reason("wide")
    assert "--rehearse" in cluster.reason("wide")
    assert cluster.states("here")[-1] == "finished"


def test_a_profile_measures_the_speed_of_a_job_by_the_number_of_workers(cluster: Cluster) -> None:
    path = cluster.site.write(cluster.job("job", 100_000, 0.02, 0.01), "jobs.toml")
    told = ("--device", "cpu", "--workers", "1", "4", "--seconds", "2", "--out", "profile.json", "--plot", "curve.svg")
    done = cluster.site.run(*TORCHLOADER, "profile", str(path), *told)
    assert done.returncode == 0, done.stderr
    profile = json.loads((cluster.site.folder / "profile.json").read_text())
    slow, fast = profile["measured"]
    assert (slow["workers"], fast["workers"]) == (1, 4)
    # A sample takes 20 ms of a worker, so one of them loads 50 in a second.
    assert slow["samples"] < 55
    assert fast["samples"] > 2 * slow["samples"]
    assert profile["curve"]["service"] == pytest.approx(0.02, rel=0.5)
    assert "<- enough" in done.stdout
    assert "4 workers are enough" in done.stdout
    assert profile["enough"] == 4
    assert "<svg" in (cluster.site.folder / "curve.svg").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL])
def test_an_interrupted_profile_leaves_no_processes_and_files(
    cluster: Cluster, wait_until: WaitUntil, number: int
) -> None:
    path = cluster.site.write(cluster.job("job", 100_000, 0.001, 0.01), "jobs.toml")
    told = ("--device", "cpu", "--workers", "1", "2", "--seconds", "1")
    temporary = cluster.site.folder / "temporary"
    temporary.mkdir()
    profile = cluster.site.start(*TORCHLOADER, "profile", str(path), *told, env={"TMPDIR": str(temporary)})
    assert profile.stderr is not None
    assert profile.stderr.readline().startswith("1 workers: ")
    profile.send_signal(number)
    profile.communicate(timeout=30)
    if number == signal.SIGKILL:
        wait_until(lambda: not cluster.site.processes())
        assert cluster.site.dragon("/bin/true").returncode == 0  # sweeps away what nobody else could
    cluster.site.assert_nothing_left(within=30)
    assert not list(temporary.iterdir())


def test_a_profile_under_nohup_continues_after_sighup(cluster: Cluster) -> None:
    path = cluster.site.write(cluster.job("job", 100_000, 0.001, 0.01), "jobs.toml")
    told = ("--device", "cpu", "--workers", "1", "2", "--seconds", "1")
    profile = cluster.site.start("nohup", *TORCHLOADER, "profile", str(path), *told)
    assert profile.stderr is not None
    while not profile.stderr.readline().startswith("1 workers: "):
        pass
    profile.send_signal(signal.SIGHUP)
    out, err = profile.communicate(timeout=60)
    assert profile.returncode == 0, err
    assert "<- enough" in out


def test_a_profile_of_a_failed_job_reports_the_reason(cluster: Cluster) -> None:
    path = cluster.site.write(cluster.job("job", 50, 0.001, 0.01, "crash"), "jobs.toml")
    done = cluster.site.run(*TORCHLOADER, "profile", str(path), "--device", "cpu", "--workers", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the job job is failed" in done.stderr
    assert "no such data set" in done.stderr
