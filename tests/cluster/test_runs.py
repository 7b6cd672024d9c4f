"""Programs over simulated nodes: where their processes run, what they print, how they end."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.infrastructure.membership import Token

WORKSHOP = Path(__file__).parents[1] / "seeds" / "programs"
SHAPE = ("--nodes", "2", "--cpus", "32", "--gpus", "4")
EVERYWHERE = """
    import os, socket, sys
    import multiprocessing as mp
    import dragon

    def say(number):
        print("line", number, socket.gethostname())
        print("warning", number, file=sys.stderr)

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        processes = [mp.Process(target=say, args=(number,), name=f"p{number}") for number in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print("codes", [process.exitcode for process in processes])
"""


def test_workers_of_a_pool_are_bound_to_the_gpus_of_every_node(site: Site) -> None:
    done = site.dragon(*SHAPE, WORKSHOP / "0_dragon_pool.py", timeout=100)
    assert done.returncode == 0, done.stderr
    bound = done.stdout.partition("Dragon Pool")[2]
    found = set(re.findall(r"host (node-\d), GPU ID\(s\): (\d)", bound))
    assert found == {(f"node-{node}", str(gpu)) for node in range(2) for gpu in range(4)}


def test_programs_have_the_same_descriptors_on_every_node(site: Site) -> None:
    program = site.write(
        """
        from dragon.native.machine import System
        from dragon.native.process import MSG_PIPE, Process

        for node in System().hostname_policies():
            process = Process("ls", ["/proc/self/fd"], stdout=MSG_PIPE, policy=node)
            process.start()
            numbers = []
            try:
                while True:
                    numbers.append(process.stdout_conn.recv().strip())
            except EOFError:
                print(*numbers)
        """
    )
    one, several = site.dragon("--nodes", "1", program), site.dragon("--nodes", "2", program)
    assert several.stdout == 2 * one.stdout, several.stderr


def test_a_process_whose_output_is_not_read_does_not_block_other_processes(site: Site) -> None:
    program = site.write(
        """
        from dragon.native.machine import System
        from dragon.native.process import MSG_PIPE, Process

        there = System().hostname_policies()[1]
        talker = Process("yes", stdout=MSG_PIPE, policy=there)
        talker.start()
        talker.stdout_conn.recv()
        talker.stdout_conn.close()
        other = Process("cat", stdin=MSG_PIPE, stdout=MSG_PIPE, policy=there)
        other.start()
        for number in range(100):
            other.stdin_conn.send(f"{number}\\n")
            assert other.stdout_conn.recv() == f"{number}\\n"
        talker.kill()
        """
    )
    done = site.dragon("--nodes", "2", program, timeout=30)
    assert done.returncode == 0, done.stderr


def test_members_of_a_group_have_the_devices_of_their_policies(site: Site) -> None:
    done = site.dragon(*SHAPE, WORKSHOP / "1_dragon_process_group.py", timeout=100)
    assert done.returncode == 0, done.stderr
    found = sorted(re.findall(r"host (node-\d), GPU ID\(s\): (\d)", done.stdout))
    assert found == [(f"node-{node}", str(gpu)) for node in range(2) for gpu in range(4)]


def test_processes_run_on_all_nodes_and_the_front_end_prints_their_output(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(EVERYWHERE))
    assert done.returncode == 0, done.stderr
    hosts = {line.rpartition(" ")[2] for line in done.stdout.splitlines() if line.startswith("line")}
    assert hosts == {"node-0", "node-1"}
    assert done.stdout.count("line") == 4
    assert "codes [0, 0, 0, 0]" in done.stdout.splitlines()
    assert sorted(re.findall(r"warning (\d)", done.stderr)) == ["0", "1", "2", "3"]


def test_a_user_without_privileges_can_rehearse_nodes(site: Site) -> None:
    somebody = ("unshare", "--user", "--map-user=31415", "--map-group=31415")
    if site.run(*somebody, "true").returncode:
        pytest.skip("this machine permits no user namespaces")
    done = site.run(*somebody, sys.executable, "-m", "dragon", "--nodes", "2", site.write(EVERYWHERE))
    assert done.returncode == 0, done.stderr
    hosts = {line.rpartition(" ")[2] for line in done.stdout.splitlines() if line.startswith("line")}
    assert hosts == {"node-0", "node-1"}


def test_processes_do_not_have_the_modules_of_the_agent_and_of_placement(site: Site) -> None:
    source = """
        import sys

        OF_THE_AGENT = {"asyncio", "ssl", "logging", "uvloop", "psutil", "dragon.agent.life", "dragon.agent.server"}
        OF_PLACEMENT = {"dataclasses", "dragon.infrastructure.policy"}
        if sys.version_info >= (3, 14):
            OF_PLACEMENT.remove("dataclasses")  # traceback needs it there

        def say():
            print((OF_THE_AGENT | OF_PLACEMENT) & sys.modules.keys())

        if __name__ == "__main__":
            from dragon.native.process import Process

            for _ in range(2):
                process = Process(say)
                process.start()
                process.join()
    """
    done = site.dragon("--nodes", "2", site.write(source))
    assert (done.stdout, done.stderr) == ("set()\nset()\n", "")


def test_a_machine_without_a_matching_interface_cannot_join_the_run(site: Site) -> None:
    claims = {"network_prefix": "nothing"}
    token = Token(addresses=["192.0.2.1:7"], fingerprint="", secret=b"", claims=claims).encode()
    done = site.dragon("node", "--join", site.write(token, "token"))
    assert done.returncode == 1
    assert "cannot be a node of the run: no interface that is up has an address and a name like" in done.stderr


@pytest.mark.parametrize(
    ("option", "label"),
    [("--basic-label", r"\[p1\] line 1 node-1"), ("--verbose-label", r"\[node-1 \d+ p1 stdout\] line 1 node-1")],
)
def test_options_choose_the_labels_of_lines(site: Site, option: str, label: str) -> None:
    done = site.dragon("--nodes", "2", option, site.write(EVERYWHERE))
    assert any(re.fullmatch(label, line) for line in done.stdout.splitlines()), done.stdout + done.stderr


def test_all_lines_of_large_output_arrive_in_order(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "2",
        site.write(
            """
            from dragon.native.process import ProcessTemplate
            from dragon.native.process_group import ProcessGroup

            def chatter(number):
                for line in range(20_000):
                    print(number, line, "x" * 100)

            if __name__ == "__main__":
                group = ProcessGroup()
                for number in range(2):
                    group.add_process(1, ProcessTemplate(chatter, (number,)))
                group.init()
                group.start()
                group.join()
            """
        ),
        timeout=100,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 40_000, done.stderr
    for number in ("0", "1"):
        assert [line.split()[1] for line in lines if line.split()[0] == number] == [str(n) for n in range(20_000)]


def test_standard_input_reaches_the_head_process(site: Site) -> None:
    program = site.write("import sys; print(sum(len(line) for line in sys.stdin), flush=True)")
    data = site.folder / "data"
    data.write_text("a line\n" * 200_000)
    with data.open() as file:
        done = site.dragon("--nodes", "2", program, stdin=file)
    assert done.stdout == f"{data.stat().st_size}\n", done.stderr


@pytest.mark.parametrize(("source", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_command_has_the_exit_code_of_the_head_process(site: Site, source: str, code: int) -> None:
    assert site.dragon("--nodes", "2", site.write(source)).returncode == code


def test_the_members_of_a_group_have_pipes_on_all_nodes(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "3",
        site.write(
            """
            from dragon.native.process import MSG_PIPE, Process, ProcessTemplate
            from dragon.native.process_group import ProcessGroup

            group = ProcessGroup()
            group.add_process(3, ProcessTemplate("sh", ["-c", "hostname; seq 1 5000"], stdout=MSG_PIPE))
            group.init()
            group.start()
            for puid in group.puids:
                connection = Process(None, ident=puid).stdout_conn
                print(connection.recv(), end="")
                total = 0
                try:
                    while True:
                        total += int(connection.recv())
                except EOFError:
                    print(total)
            group.join()
            group.close()
            """
        ),
    )
    assert done.stdout == "".join(f"node-{node}\n{5000 * 5001 // 2}\n" for node in range(3)), done.stderr


def test_a_group_can_be_killed_immediately_after_its_start(site: Site) -> None:
    program = site.write(
        """
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        if __name__ == "__main__":
            for _ in range(20):
                group = ProcessGroup()
                group.add_process(4, ProcessTemplate("sleep", ["600"]))
                group.init()
                group.start()
                group.kill()
                group.join(10)
                assert {code for _, code in group.exit_status} == {-9}
                group.close()
            print("ended")
        """
    )
    done = site.dragon("--nodes", "2", program)
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_processes_of_all_nodes_end_and_await_a_process_that_they_were_sent(site: Site) -> None:
    program = site.write(
        """
        import itertools, time
        from dragon.native.machine import System
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        def end(process, queue):
            process.terminate()
            queue.put(process.join(30))

        if __name__ == "__main__":
            for where, who in itertools.product(System().hostname_policies(), repeat=2):
                queue = Queue()
                process = Process(time.sleep, (1000,), policy=where)
                process.start()
                Process(end, (process, queue), policy=who).start()
                print(queue.get(), process.join(30))
        """
    )
    done = site.dragon("--nodes", "2", program)
    assert done.stdout == "-15 -15\n" * 4, done.stderr


def test_a_broadcast_reaches_the_managers_of_all_nodes(site: Site) -> None:
    program = site.write(
        """
        from dragon.data.ddict import DDict
        from dragon.native import Process, Queue
        from dragon.native.machine import System

        VALUES = {"small": 1, "medium": bytes(300_000), "large": bytes(5 * 2**20)}

        def read(ddict, queue):
            for manager in range(12):
                chosen = ddict.manager(manager)
                queue.put((manager, all(chosen.bget(key) == VALUES[key] for key in VALUES)))

        if __name__ == "__main__":
            ddict, queue = DDict(4, 3, 12 * 2**25), Queue()
            for key, value in VALUES.items():
                ddict.bput(key, None)
                ddict.bput(key, value)
            for node in System().hostname_policies():
                reader = Process(read, (ddict, queue), policy=node)
                reader.start()
                reader.join()
            print(sorted(queue.get() for _ in range(36)) == [(i // 3, True) for i in range(36)], len(ddict))
            ddict.destroy()
        """
    )
    done = site.dragon("--nodes", "3", program, timeout=100)
    assert done.stdout == "True 3\n", done.stderr


def test_a_process_on_another_node_has_pipes_signals_and_a_sentinel(site: Site) -> None:
    done = site.dragon(
        "--nodes",
        "2",
        site.write(
            """
            import select
            from dragon.infrastructure.policy import Policy
            from dragon.native.process import Popen, Process

            there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            cat = Popen(["cat"], stdin=Popen.PIPE, stdout=Popen.PIPE, policy=there)
            cat.stdin.send("to and fro\\n")
            print(cat.stdout.recv(), end="")
            cat.stdin.close()
            cat.wait()
            print(cat.returncode)
            host = Process("hostname", stdout=Popen.PIPE, policy=there)
            host.start()
            print(host.stdout_conn.recv(), end="")
            sleep = Process("sleep", ["1000"], policy=there)
            sleep.start()
            print(sleep.is_alive, sleep.node)
            sentinel = sleep._started.sentinel
            sleep.terminate()
            select.select([sentinel], [], [], 30)
            print(sleep.join(30))
            try:
                Process("/no/such/program", policy=there).start()
            except Exception as error:
                print(type(error).__name__)
            """
        ),
    )
    lines = done.stdout.split("\n")
    assert lines[:4] == ["to and fro", "0", "node-1", "True 1"], done.stdout + done.stderr
    assert lines[4] == "-15"


def test_a_plan_has_the_node_processors_and_gpus_of_each_process(site: Site) -> None:
    done = site.dragon("plan", "--json", *SHAPE, WORKSHOP / "1_dragon_process_group.py", timeout=100)
    records = json.loads(done.stdout)
    assert [record["name"] for record in records[:2]] == ["head", "group-1-0"]
    assert {record["host_name"] for record in records} == {"node-0", "node-1"}
    assert records[1]["cpus"] == list(range(8))
    assert records[1]["gpus"] == {"CUDA_VISIBLE_DEVICES": "3"}
    assert "Hello from host" in done.stderr


def test_a_plan_is_a_table_without_json(site: Site) -> None:
    done = site.dragon("plan", *SHAPE, WORKSHOP / "1_dragon_process_group.py", timeout=100)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["host", "process", "target", "CPUs", "GPUs", "chosen", "by"]
    assert lines[-1].split()[:5] == ["node-1", "group-1[7]", "hello_gpu_affinity", "24-31", "CUDA_VISIBLE_DEVICES=0"]


@pytest.mark.long
@pytest.mark.parametrize("by", [(), ("--service",)], ids=["by monitors", "by the runtime's telemetry"])
def test_the_telemetry_example_monitors_every_node(site: Site, by: tuple[str, ...]) -> None:
    for requirement in ("torch", "scipy", "sklearn", "tqdm"):
        pytest.importorskip(requirement, reason="examples/telemetry/requirements.txt is not installed")
    example = Path(__file__).parents[2] / "examples" / "telemetry" / "telemetry_full.py"
    small = ("--scipy_workers", "1", "--mnist_workers", "1", "--epochs", "1", "--mem", str(2**24))
    done = site.dragon("--nodes", "2", example, *small, *by, timeout=180)
    assert done.returncode == 0, done.stderr
    for name in ("node-0", "node-1"):
        assert f"nodename: {name} cpu load average" in done.stdout
        assert by or f"Telemetry process on node {name} exiting" in done.stdout
    assert done.stdout.count("Final test for learning rate") == 1
