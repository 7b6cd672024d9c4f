"""The metrics that the runtime measures, on one node and on several."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.infrastructure.metrics import METRICS
from together import failures

OF_NODES = {"load_average", "cpu_percent", "used_RAM", "num_running_processes", "def_pool_utilization"}
OF_PROCESSES = {"process_cpu_percent", "process_memory", "process_state", "cpu_core_percent", "db_size"}
QUICK = {"DRAGON_TELEMETRY_PERIOD": "0.1"}
COMMON = f"""
import os, signal, sys, time
from dragon.data.ddict import DDict
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue
from dragon.runtime.run import this_run
from dragon.telemetry import AnalysisClient, Telemetry

OF_NODES, OF_PROCESSES = {OF_NODES}, {OF_PROCESSES}
NODES = {{"node-0", "node-1"}}


def wait_until(holds):
    while not holds():
        time.sleep(0.05)


def hosts_of(metric):
    return {{record["tags"]["host"] for record in AnalysisClient().get_data(metric)}}


def there(node):
    return Policy(placement=Policy.Placement.HOST_NAME, host_name=f"node-{{node}}")


def started(target, *arguments, node=1, **options):
    process = Process(target, arguments, policy=there(node), **options)
    process.start()
    return process
"""
AT_LEVEL_2 = """
def check_queries_return_the_metrics_of_all_nodes():
    wait_until(lambda: all(hosts_of(metric) == NODES for metric in OF_NODES))


def check_level_2_has_no_metrics_of_processes():
    assert not AnalysisClient().get_metrics() & OF_PROCESSES


def tell(queue):
    queue.put(this_run().agent.pid)


def check_queries_return_the_metrics_of_the_other_nodes_after_a_node_is_lost():
    queue = Queue()
    started(tell, queue)
    os.kill(queue.get(), signal.SIGKILL)
    wait_until(lambda: hosts_of("load_average") == {"node-0"})
"""
AT_LEVEL_4 = """
def spin():
    kept = b"x" * 200_000_000
    end = time.monotonic() + 100
    while time.monotonic() < end:
        pass


def fail():
    time.sleep(0.2)
    raise SystemExit(1)


def running(places, target, **options):
    group = ProcessGroup(**options)
    for place in places:
        group.add_process(1, ProcessTemplate(target, policy=place))
    group.init()
    group.start()
    return group


def newest(metric, **tags):
    records = AnalysisClient().get_data(metric, tags={name: str(value) for name, value in tags.items()})
    return [list(record["dps"].values())[-1] for record in records]


def ended(group):
    group.stop_restart()
    group.stop()
    group.close()


def check_level_4_has_the_metrics_of_nodes_and_processes():
    wait_until(lambda: OF_NODES | OF_PROCESSES <= AnalysisClient().get_metrics())


def check_processes_and_groups_are_measured():
    busy = running([None], spin, name="busy")
    (puid,) = busy.puids
    wait_until(lambda: any(percent > 10 for percent in newest("process_cpu_percent", puid=puid)))
    wait_until(lambda: any(size > 200_000_000 for size in newest("process_memory", puid=puid)))
    wait_until(lambda: 1 in newest("group_live", group="busy"))
    ended(busy)


def check_restarts_of_a_group_are_counted():
    failing = running([None], fail, name="failing", restart=True)
    wait_until(lambda: any(count >= 2 for count in newest("group_restarts", group="failing")))
    ended(failing)


def of_hosts(metric, **tags):
    records = AnalysisClient().get_data(metric, tags=tags, interval=0)
    return {record["tags"]["host"]: list(record["dps"].values())[-1] for record in records}


def check_each_node_measures_its_own_queues():
    here, far = Queue(), Queue(policy=there(1))
    for number in range(5):
        far.put(number)
    here.put(0)
    wait_until(lambda: of_hosts("queue_depth") == {"node-0": 1, "node-1": 5})
    for _ in range(5):
        far.get()
    wait_until(lambda: of_hosts("queue_gets") == {"node-0": 0, "node-1": 5})
    here.get()
    waiter = started(here.get)
    wait_until(lambda: of_hosts("queue_waiting", operation="get") == {"node-0": 1, "node-1": 0})
    here.put(None)
    waiter.join()


def keep():
    kept = b"x" * 50_000_000
    time.sleep(100)


def check_each_node_measures_its_members_and_shards():
    keepers = running([there(0), there(1)], keep, name="keepers")
    wait_until(lambda: sum(size > 50_000_000 for size in of_hosts("group_memory", group="keepers").values()) == 2)
    ended(keepers)
    with DDict(1, 2, 2**26, name="spread") as ddict:
        ddict.update({number: number for number in range(100)})
        wait_until(lambda: sum(0 < n < 100 for n in of_hosts("dictionary_keys", dictionary="spread").values()) == 2)
"""
WITHOUT_TELEMETRY = """
def check_a_program_can_start_and_end_the_telemetry_of_all_nodes():
    client, telemetry = AnalysisClient(), Telemetry(telem_cfg={"collector_rate": 0.1})
    assert (telemetry.level, client.get_metrics()) == (0, set())
    telemetry.start(2)
    wait_until(lambda: hosts_of("load_average") == NODES)
    assert (telemetry.level, Telemetry().level) == (2, 2)
    telemetry.shutdown()
    assert client.get_metrics() == set()


def check_lifetimes_have_every_process_and_its_end():
    failing = started(sys.exit, 3, ident="failing")
    failing.join()
    found = {lifetime.name: lifetime for lifetime in AnalysisClient().get_lifetimes()}
    ended = found.pop("failing")
    assert (ended.node, ended.host, ended.puid, ended.code) == (1, "node-1", failing.puid, 3)
    (head,) = found.values()
    assert head.puid == ended.parent
    assert head.started < ended.started < ended.ended
    assert head.ended is None
    assert [lifetime.puid for lifetime in AnalysisClient().get_lifetimes(since=ended.ended + 1)] == [head.puid]


def check_lifetimes_distinguish_processes_that_the_program_ended_from_others():
    begun, expected = time.time(), []
    for node in 0, 1:
        for name, end, code in ("terminated", Process.terminate, -15), ("killed", Process.kill, -9):
            process = started(time.sleep, 1000, ident=f"{name} {node}", node=node)
            end(process)
            process.join()
            expected.append((f"{name} {node}", code, True, False))
    for name, number in ("outside", signal.SIGTERM), ("other signal", signal.SIGKILL):
        process = started(time.sleep, 1000, ident=name, node=0)
        process.send_signal(signal.SIGCONT)
        os.kill(process._started.pid, number)
        process.join()
        expected.append((name, -number, False, True))
    ended = [one for one in AnalysisClient().get_lifetimes(since=begun) if one.ended is not None]
    told = [(one.name, one.code, one.terminated, one.has_failed) for one in ended if one.started > begun]
    assert sorted(told) == sorted(expected), told
"""


@pytest.mark.parametrize(
    ("program", "options"),
    [(AT_LEVEL_2, ["--nodes=2", "-T2"]), (AT_LEVEL_4, ["--nodes=2", "-T4"]), (WITHOUT_TELEMETRY, ["--nodes=2"])],
    ids=["level 2", "level 4", "without telemetry"],
)
def test_a_run_is_measured(site: Site, program: str, options: list[str]) -> None:
    assert failures(site, COMMON + program, *options, **QUICK) == {}


IN_PLAIN_PYTHON = """
import os, time
from pathlib import Path
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import TelemetryLevel
from dragon.runtime.run import in_run, this_run
from dragon.telemetry import AnalysisClient, Telemetry


def check_calls_without_telemetry_do_not_start_a_run():
    telemetry = Telemetry()
    telemetry.add_data("loss", 1)
    with telemetry.timer("step"):
        telemetry.counter("images").add()
    assert (telemetry.level, in_run()) == (0, False)


def check_the_agent_has_no_thread_and_module_of_telemetry_without_it():
    ask(TelemetryLevel())
    pid = this_run().agent.pid
    assert os.listdir(f"/proc/{pid}/task") == [str(pid)]
    assert "psutil" not in Path(f"/proc/{pid}/maps").read_text()


def check_a_program_without_the_command_has_a_lifetime():
    (head,) = AnalysisClient().get_lifetimes()
    assert head.pid == os.getpid()
    assert 0 < time.time() - head.started < 100
"""
VARIABLE = """
def check_a_variable_starts_the_telemetry_of_a_program_without_the_command():
    wait_until(lambda: OF_NODES | {"process_memory"} <= AnalysisClient().get_metrics())
    assert "psutil" in open(f"/proc/{this_run().agent.pid}/maps").read()
"""


def test_a_program_without_the_command_is_measured_only_on_request(site: Site) -> None:
    assert failures(site, IN_PLAIN_PYTHON, command=False) == {}
    assert failures(site, COMMON + VARIABLE, command=False, **QUICK, DRAGON_TELEMETRY_LEVEL="4") == {}


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
