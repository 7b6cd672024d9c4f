"""The metrics that the runtime measures, on one node and on several."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.infrastructure.metrics import METRICS

# Waits for the metrics that it is given, and prints those that there are, with the hosts that have each.
WAITS_FOR = """
import json, sys, time
from dragon.telemetry import AnalysisClient

if __name__ == "__main__":
    client = AnalysisClient()
    client.connect()
    hosts, awaited, found = int(sys.argv[1]), sys.argv[2:], {}
    while any(len(found.get(metric, ())) < hosts for metric in awaited):
        time.sleep(0.05)
        found = {}
        for record in client.get_data(client.get_metrics()):
            found.setdefault(record["metric"], []).append(record["tags"]["host"])
    print(json.dumps({metric: sorted(set(hosts)) for metric, hosts in found.items()}))
"""
OF_NODES = {"load_average", "cpu_percent", "used_RAM", "num_running_processes", "def_pool_utilization"}
OF_PROCESSES = {"process_cpu_percent", "process_memory", "process_state", "cpu_core_percent", "db_size"}
QUICK = {"DRAGON_TELEMETRY_PERIOD": "0.1"}


@pytest.mark.parametrize(
    ("level", "awaited", "absent"), [(2, OF_NODES, OF_PROCESSES), (4, OF_NODES | OF_PROCESSES, set())]
)
def test_the_level_determines_the_metrics(site: Site, level: int, awaited: set[str], absent: set[str]) -> None:
    done = site.dragon("-T", str(level), site.write(WAITS_FOR), "1", *awaited, env=QUICK)
    assert done.returncode == 0, done.stderr
    assert not set(json.loads(done.stdout)) & absent


def test_a_variable_starts_the_telemetry_of_a_program_without_the_command(site: Site) -> None:
    done = site.python(WAITS_FOR, "1", *OF_NODES, "process_memory", env={**QUICK, "DRAGON_TELEMETRY_LEVEL": "4"})
    assert done.returncode == 0, done.stderr


def test_queries_return_the_metrics_of_all_nodes(site: Site) -> None:
    done = site.dragon("--nodes", "2", "-T", "2", site.write(WAITS_FOR), "2", *OF_NODES, env=QUICK)
    found = json.loads(done.stdout)
    assert all(found[metric] == ["node-0", "node-1"] for metric in OF_NODES), done.stderr


def test_a_program_can_start_and_end_the_telemetry_of_all_nodes(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "2",
        site.write(
            """
            import time
            from dragon.telemetry import AnalysisClient, Telemetry

            client, telemetry = AnalysisClient(), Telemetry(telem_cfg={"collector_rate": 0.1})
            print(telemetry.level, client.get_metrics())
            telemetry.start(2)
            while len(client.get_data("load_average")) < 2:
                time.sleep(0.05)
            print(telemetry.level, Telemetry().level)
            telemetry.shutdown()
            print(client.get_metrics())
            """
        ),
    )
    assert done.stdout.splitlines() == ["0 set()", "2 2", "set()"], done.stderr


def test_queries_return_the_metrics_of_the_other_nodes_after_a_node_is_lost(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "2",
        "-T",
        "2",
        site.write(
            """
            import os, signal, time
            from dragon.infrastructure.policy import Policy
            from dragon.native.process import Process
            from dragon.native.queue import Queue
            from dragon.runtime.run import this_run
            from dragon.telemetry import AnalysisClient

            def hosts():
                return {record["tags"]["host"] for record in client.get_data("load_average")}

            def wait_for(expected):
                while hosts() != expected:
                    time.sleep(0.05)

            def tell(queue):
                queue.put(this_run().agent.pid)

            if __name__ == "__main__":
                client, queue = AnalysisClient(), Queue()
                wait_for({"node-0", "node-1"})
                there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
                Process(tell, (queue,), policy=there).start()
                os.kill(queue.get(), signal.SIGKILL)
                wait_for({"node-0"})
                print("node-0 answers")
            """
        ),
        env=QUICK,
    )
    assert done.stdout == "node-0 answers\n", done.stderr


def test_processes_and_groups_are_measured(site: Site) -> None:
    done = site.dragon(
        "-T",
        "4",
        site.write(
            """
            import time
            from dragon.native.process import ProcessTemplate
            from dragon.native.process_group import ProcessGroup
            from dragon.telemetry import AnalysisClient

            def spin():
                kept = b"x" * 200_000_000
                end = time.monotonic() + 100
                while time.monotonic() < end:
                    pass

            def fail():
                time.sleep(0.2)
                raise SystemExit(1)

            def newest(metric, **tags):
                records = client.get_data(metric, tags={name: str(value) for name, value in tags.items()})
                return [list(record["dps"].values())[-1] for record in records]

            def wait_until(metric, holds, **tags):
                while not any(map(holds, newest(metric, **tags))):
                    time.sleep(0.05)

            if __name__ == "__main__":
                client = AnalysisClient()
                busy = ProcessGroup(name="busy")
                busy.add_process(1, ProcessTemplate(spin))
                busy.init()
                busy.start()
                (puid,) = busy.puids
                wait_until("process_cpu_percent", lambda percent: percent > 10, puid=puid)
                wait_until("process_memory", lambda size: size > 200_000_000, puid=puid)
                wait_until("group_live", lambda count: count == 1, group="busy")
                failing = ProcessGroup(name="failing", restart=True)
                failing.add_process(1, ProcessTemplate(fail))
                failing.init()
                failing.start()
                wait_until("group_restarts", lambda count: count >= 2, group="failing")
                for group in busy, failing:
                    group.stop_restart()
                    group.stop()
                    group.close()
            """
        ),
        env=QUICK,
    )
    assert done.returncode == 0, done.stderr


def test_calls_without_telemetry_do_not_start_a_run(site: Site) -> None:
    done = site.python(
        """
        from dragon.runtime.run import in_run
        from dragon.telemetry import Telemetry

        telemetry = Telemetry()
        telemetry.add_data("loss", 1)
        with telemetry.timer("step"):
            telemetry.counter("images").add()
        print(telemetry.level, in_run())
        """
    )
    assert done.stdout == "0 False\n", done.stderr


def test_the_agent_has_no_thread_and_module_of_telemetry_without_it(site: Site) -> None:
    program = """
        import os, sys
        from pathlib import Path
        from dragon.runtime.run import this_run
        from dragon.runtime.agent_client import ask
        from dragon.runtime.protocol.telemetry import TelemetryLevel

        ask(TelemetryLevel())
        print(sorted(os.listdir(f"/proc/{this_run().agent.pid}/task")) == [str(this_run().agent.pid)])
        print("psutil" in Path(f"/proc/{this_run().agent.pid}/maps").read_text())
        """
    assert site.python(program).stdout == "True\nFalse\n"
    assert site.python(program, env={"DRAGON_TELEMETRY_LEVEL": "2"}).stdout.endswith("True\n")


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("DRAGON_TELEMETRY_LEVEL", "9", "DRAGON_TELEMETRY_LEVEL=9: the levels are 0 (off) to 5; nothing is measured"),
        ("DRAGON_TELEMETRY_PERIOD", "0", "DRAGON_TELEMETRY_PERIOD=0 is not a number of seconds"),
        ("DRAGON_TELEMETRY_PORT", "x", "DRAGON_TELEMETRY_PORT=x is not a TCP port"),
    ],
)
def test_an_invalid_setting_is_reported_and_the_program_runs(site: Site, variable: str, value: str, told: str) -> None:
    program = site.write("from dragon.native.queue import Queue; q = Queue(); q.put('ran'); print(q.get())")
    environment = {"DRAGON_TELEMETRY_LEVEL": "2", variable: value}
    done = site.run(sys.executable, Path(program), env=environment)
    assert done.stdout == "ran\n"
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["-T", "6"], ["-T", "x"], ["--telemetry-port", "65536"]])
def test_an_invalid_option_is_refused(site: Site, words: list[str]) -> None:
    done = site.dragon(*words, site.write("print('ran')"))
    assert (done.returncode, done.stdout) == (2, "")


def test_the_guide_lists_every_metric() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    assert [metric.name for metric in METRICS.values() if f"`{metric.name}`" not in guide] == []


def test_lifetimes_have_every_process_and_its_end(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "2",
        site.write(
            """
            import sys
            from dragon.infrastructure.policy import Policy
            from dragon.native.process import Process
            from dragon.telemetry import AnalysisClient

            if __name__ == "__main__":
                there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
                failing = Process(sys.exit, (3,), ident="failing", policy=there)
                failing.start()
                failing.join()
                client = AnalysisClient()
                found = {lifetime.name: lifetime for lifetime in client.get_lifetimes()}
                ended = found.pop("failing")
                assert (ended.node, ended.host, ended.puid, ended.code) == (1, "node-1", failing.puid, 3)
                (head,) = found.values()
                assert head.puid == ended.parent
                assert head.started < ended.started < ended.ended
                assert head.ended is None
                assert [lifetime.puid for lifetime in client.get_lifetimes(since=ended.ended + 1)] == [head.puid]
                print("well")
            """
        ),
    )
    assert done.stdout == "well\n", done.stderr


def test_lifetimes_distinguish_processes_that_the_program_ended_from_others(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "2",
        site.write(
            """
            import os, signal, time
            from dragon.infrastructure.policy import Policy
            from dragon.native.process import Process
            from dragon.telemetry import AnalysisClient

            def start(name, node):
                place = Policy(placement=Policy.Placement.HOST_NAME, host_name=f"node-{node}")
                process = Process(time.sleep, (1000,), ident=name, policy=place)
                process.start()
                return process

            if __name__ == "__main__":
                for node in 0, 1:
                    for name, end in ("terminated", Process.terminate), ("killed", Process.kill):
                        process = start(f"{name} {node}", node)
                        end(process)
                        process.join()
                process = start("outside", 0)
                os.kill(process._started.pid, signal.SIGTERM)
                process.join()
                process = start("other signal", 0)
                process.send_signal(signal.SIGCONT)
                os.kill(process._started.pid, signal.SIGKILL)
                process.join()
                ended = [one for one in AnalysisClient().get_lifetimes() if one.ended is not None]
                for one in sorted(ended, key=lambda one: one.name):
                    print(one.name, one.code, one.terminated, one.has_failed)
            """
        ),
    )
    assert done.stdout.splitlines() == [
        "killed 0 -9 True False",
        "killed 1 -9 True False",
        "other signal -9 False True",
        "outside -15 False True",
        "terminated 0 -15 True False",
        "terminated 1 -15 True False",
    ], done.stderr


def test_a_program_without_the_command_has_a_lifetime(site: Site) -> None:
    done = site.python(
        """
        import os
        import time
        from dragon.telemetry import AnalysisClient

        (head,) = AnalysisClient().get_lifetimes()
        assert head.pid == os.getpid()
        assert 0 < time.time() - head.started < 100
        print("well")
        """
    )
    assert done.stdout == "well\n", done.stderr
