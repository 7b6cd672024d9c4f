"""`dragon ps` and `dragon kill`: list runs and end them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from hanging import running

from conftest import Site
from dragon import runs
from dragon.cli import kill, ps
from dragon.infrastructure.facts import FIRST_PUID
from dragon.runtime.folder import Owner
from dragon.runtime.inspection import ask_agent
from dragon.runtime.protocol.run import EndRun
from dragon.runtime.run_info import RunInfo


def test_a_run_is_listed_with_the_name_of_its_program_and_ranges_of_nodes(tmp_path: Path) -> None:
    command = f"/{'long/' * 30}python -u /{'long/' * 30}train.py --lr 0.1"
    info = [RunInfo(Owner(1, 1), Owner(70 + node, 1), 5, command, node) for node in range(64)]
    run = runs.Run("3fa9c1", [runs.Node(tmp_path, each) for each in info])
    assert run.shortened == "python -u train.py --lr 0.1"
    line = ps._runs_table([run]).splitlines()[1].removesuffix(command)
    assert line.split()[:2] == ["3fa9c1", "0-63"]
    assert len(line) < 80


WAITING = """
    import json, os, subprocess, sys, time
    import multiprocessing as mp
    import dragon

    def work(queue):
        child = subprocess.Popen(["sleep", "1000"])
        queue.put((os.getpid(), child.pid))
        time.sleep(1000)

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        queue = mp.Queue()
        process = mp.Process(target=work, args=(queue,), name="worker", daemon=True)
        process.start()
        worker, child = queue.get()
        print(json.dumps({"head": os.getpid(), "worker": worker, "child": child}), flush=True)
        process.join()
"""
OVER_NODES = """
    import json, os, time
    from dragon.infrastructure.policy import Policy
    from dragon.native.process import Process
    from dragon.native.queue import Queue

    def work(queue):
        queue.put(os.getpid())
        time.sleep(1000)

    if __name__ == "__main__":
        queue = Queue()
        place = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
        process = Process(work, (queue,), policy=place)
        process.start()
        print(json.dumps({"head": os.getpid(), "worker": queue.get()}), flush=True)
        process.join()
"""


# ---- dragon ps


@pytest.mark.parametrize("plain", [True, False], ids=["python", "dragon"])
def test_runs_are_listed(site: Site, plain: bool) -> None:
    with running(site, WAITING, plain=plain) as program:
        entry = next(e for e in json.loads(site.dragon("ps", "--json").stdout) if e["run"] == program.name)
        assert entry["command"].endswith("program.py")
        assert entry["processes"] == 3  # the head, the worker, and what the worker started
        owner = program.process.pid
        assert (entry["head"], entry["front_end"]) == ((owner, None) if plain else (None, owner))
        assert time.time() - entry["since"] < 60
        assert [node["node"] for node in entry["nodes"]] == [0]
        line = next(line for line in site.dragon("ps").stdout.splitlines() if line.startswith(program.name))
        assert line.split()[3] == str(owner)


def test_a_run_is_listed_immediately_after_its_start(site: Site) -> None:
    program = """
        import os
        from dragon import runs
        from dragon.native.queue import Queue

        queue = Queue()
        print(any(run.head and run.head.pid == os.getpid() for run in runs.find()))
    """
    assert site.python(program).stdout == "True\n"


def test_the_processes_of_a_run_are_listed(site: Site) -> None:
    with running(site, WAITING, plain=True) as program:
        by_name = {row["name"]: row for row in program.ask("ps")["processes"]}
        assert set(by_name) == {"head", "agent", "zygote", "worker", "sleep"}
        assert by_name["head"]["puid"] == FIRST_PUID
        pids = {name: by_name[name]["pid"] for name in ("head", "worker", "sleep")}
        assert pids == {"head": program.pids["head"], "worker": program.pids["worker"], "sleep": program.pids["child"]}
        assert by_name["worker"]["state"] == "sleeping"
        assert by_name["worker"]["memory"] > 2**20
        assert by_name["worker"]["cpu_seconds"] < 10


def test_forked_children_of_the_program_are_listed_and_end_with_it(site: Site) -> None:
    source = """
        import json, os
        from dragon.native.queue import Queue

        queue = Queue()
        child = os.fork()
        if child == 0:
            queue.get()
        print(json.dumps({"child": child}), flush=True)
        os.waitpid(child, 0)
    """
    with running(site, source, plain=True) as program:
        assert program.pids["child"] in {row["pid"] for row in program.ask("ps")["processes"]}
        assert site.dragon("kill", str(program.process.pid)).returncode == 0
        site.assert_nothing_left(within=10)


def test_a_run_is_found_with_another_environment(site: Site, tmp_path: Path) -> None:
    with running(site, WAITING) as program:
        done = site.dragon("ps", program.name, env={"XDG_RUNTIME_DIR": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        assert "worker" in done.stdout


def test_simulated_nodes_are_listed_as_one_run(site: Site) -> None:
    with running(site, OVER_NODES, "--nodes", "2") as program:
        told = program.ask("ps")
        assert [node["node"] for node in told["run"]["nodes"]] == [0, 1]
        assert {(row["name"], row["node"]) for row in told["processes"]} >= {("head", 0), ("agent", 1), ("zygote", 1)}
        assert next(row["node"] for row in told["processes"] if row["pid"] == program.pids["worker"]) == 1


def test_ps_and_doctor_leave_no_files(site: Site) -> None:
    for command in ("ps", "doctor"):
        assert site.dragon(command).returncode == 0
    site.assert_nothing_left()


# ---- what a run is called


def made_up(name: str, pid: int) -> runs.Run:
    owner = Owner(pid, 0)
    return runs.Run(
        name,
        [runs.Node(Path(f"/tmp/dragon-0/{pid}-1-{name}"), RunInfo(owner, Owner(pid + 1, 0), 3, f"prog-{name}.py"))],
    )


@pytest.mark.parametrize("word", ["abc123", "ab", "100", "101", "100-1-abc123", "100-", "/tmp/dragon-0/100-1-abc123/"])
def test_a_run_is_selected_by_its_name_its_processes_or_its_folder(word: str) -> None:
    there = [made_up("abc123", 100), made_up("acc123", 1000)]
    assert runs.choose(word, there).name == "abc123"


def test_an_error_lists_the_runs_if_a_word_selects_several() -> None:
    with pytest.raises(runs.NoSuchRunError, match=r"abc123 \(prog-abc123.py\), acc123 \(prog-acc123.py\)"):
        runs.choose("a", [made_up("abc123", 100), made_up("acc123", 1000)])


def test_an_error_lists_the_runs_if_a_word_selects_none() -> None:
    with pytest.raises(runs.NoSuchRunError, match=r"no run 'x'.*there are: abc123 \(prog-abc123.py\)"):
        runs.choose("x", [made_up("abc123", 100)])


# ---- dragon kill


@pytest.mark.parametrize("how", ["python", "dragon", "nodes"])
def test_a_killed_run_leaves_nothing(site: Site, how: str) -> None:
    source, options = (OVER_NODES, ["--nodes", "2"]) if how == "nodes" else (WAITING, [])
    with running(site, source, *options, plain=how == "python") as program:
        done = site.dragon("kill", program.name[:5])
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("ended ")
        assert "had to be killed" not in done.stdout
        _, errors = program.process.communicate(timeout=10)
        assert program.process.returncode == (-signal.SIGTERM if how == "python" else 128 + signal.SIGTERM)
        assert "Traceback" not in errors
        site.assert_nothing_left(within=10)


@pytest.mark.parametrize("stopped", ["dragon", "agent", "zygote", "worker", "head"])
def test_a_run_with_a_stopped_process_is_ended(site: Site, stopped: str) -> None:
    with running(site, WAITING) as program:
        os.kill(next(row["pid"] for row in program.ask("ps")["processes"] if row["name"] == stopped), signal.SIGSTOP)
        done = site.dragon("kill", str(program.process.pid))
        assert done.returncode == 0, done.stderr
        program.process.communicate(timeout=10)
        site.assert_nothing_left(within=10)


def test_a_process_that_ignores_sigterm_is_killed(site: Site) -> None:
    source = """
        import json, os, signal, time
        from dragon.native.queue import Queue

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Queue()
        print(json.dumps({"head": os.getpid()}), flush=True)
        while True:
            time.sleep(1)
    """
    with running(site, source, plain=True) as program:
        done = site.dragon("kill", str(program.process.pid))
        assert "1 of which had to be killed" in done.stdout
        assert program.process.wait(10) == -signal.SIGKILL
        site.assert_nothing_left(within=10)


def test_a_request_to_any_agent_ends_the_run_on_all_nodes(site: Site) -> None:
    """Send the request that `dragon kill` sends on a machine without the front end."""
    with running(site, OVER_NODES, "--nodes", "2") as program:
        ask_agent(program.folder(1), EndRun(), 5)
        assert program.process.wait(30) == 128 + signal.SIGTERM
        site.assert_nothing_left()


def test_kill_all_ends_all_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(site, WAITING, name="one.py") as one, running(site, WAITING, name="two.py") as two:
        # This user's other runs are none of a test's business.
        mine = [
            run
            for run in runs.find()
            if run.command.endswith((str(site.folder / "one.py"), str(site.folder / "two.py")))
        ]
        assert len(mine) == 2
        monkeypatch.setattr(runs, "find", lambda: mine)
        assert kill.main(["--all"]) == 0
        assert [program.process.wait(10) for program in (one, two)] == [128 + signal.SIGTERM] * 2
        assert capsys.readouterr().out.count("ended ") == 2


def test_an_unknown_run_is_an_error(site: Site) -> None:
    done = site.dragon("kill", "no-such")
    assert done.returncode == 1
    assert "you have no run 'no-such' on this machine" in done.stderr


@pytest.mark.parametrize("words", [["kill"], ["kill", "--all", "x"]])
def test_kill_requires_a_run_or_all(site: Site, words: list[str]) -> None:
    done = site.dragon(*words)
    assert done.returncode == 2
    assert "name a run (`dragon ps` lists them), or give --all" in done.stderr


# ---- all of them


@pytest.mark.parametrize("command", ["ps", "kill", "doctor"])
def test_the_help_has_examples(site: Site, command: str) -> None:
    done = site.dragon(command, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert f"dragon {command} " in site.dragon("--help").stdout


@pytest.mark.parametrize("command", ["ps", "kill", "doctor"])
def test_a_program_with_the_name_of_a_command_runs_by_its_path(site: Site, command: str) -> None:
    site.write("print('my own', flush=True)", command)
    assert site.dragon(f"./{command}").stdout == "my own\n"
