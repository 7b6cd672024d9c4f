"""MPI jobs as process groups, with real MPI libraries, over one node and over several."""

from __future__ import annotations

import csv
import os
import re
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import Site
from peers.mpi import Mpi

PROGRAMS = Path(__file__).parent / "programs"
WORKFLOW = Path(__file__).parents[2] / "examples" / "mpi_workflow" / "workflow.py"
DOCUMENTED = Path(__file__).parents[1] / "seeds" / "programs"


def run_job(site: Site, mpi: Mpi, count: int, deed: str, *options: str, pmi: str = "auto") -> tuple[str, str]:
    """Run a job of rank.py; return its output and the messages about it."""
    rank = [str(mpi.python), str(PROGRAMS / "rank.py"), deed]
    done = site.dragon(*options, PROGRAMS / "job.py", "--pmi", pmi, str(count), *rank)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_ranks_communicate_with_each_other(site: Site, mpi: Mpi) -> None:
    host = socket.gethostname()
    said, _ = run_job(site, mpi, 4, "work")
    assert said == f"4 ranks, sum 6, on {' '.join([host] * 4)}, [4, 4, 4, 4] of a node\n"


def test_ranks_of_several_nodes_know_the_ranks_of_their_node(site: Site, mpi: Mpi) -> None:
    said, _ = run_job(site, mpi, 5, "work", "--nodes", "3", "--no-label")
    assert said == "5 ranks, sum 10, on node-0 node-1 node-2 node-0 node-1, [2, 2, 1, 2, 2] of a node\n"


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("abort", "aborted the job with exit code 5"),
        ("leave", "ended without MPI_Finalize"),
        ("fail", "ended with exit code 3; it last wrote:\nno coffee"),
        ("die", "ended with signal SIGKILL"),
        ("not-init", "ended without MPI_Init, in which others wait for it"),
        ("fail-before-init", "ended with exit code 4; it last wrote:\nno water"),
        ("die-before-init", "ended with signal SIGKILL"),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_ends_with_the_rank_that_fails(site: Site, mpi: Mpi, deed: str, told: str, nodes: int) -> None:
    said, _ = run_job(site, mpi, 4, deed, "--nodes", str(nodes), "--no-label")
    host = "node-1" if nodes > 1 else socket.gethostname()
    assert re.search(rf"first, rank 1 \(puid \d+\) on {host} {re.escape(told)}", said), said


def test_a_job_ends_if_the_node_of_a_rank_is_lost(site: Site, mpi: Mpi) -> None:
    program = site.write(
        """
        import os, sys
        from dragon.native.process import MSG_PIPE, Process, ProcessTemplate
        from dragon.native.process_group import DragonUserCodeError, ProcessGroup

        def parent(pid):
            return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

        if __name__ == "__main__":
            group = ProcessGroup(pmi_enabled=True)
            group.add_process(4, ProcessTemplate(sys.argv[1], [sys.argv[2], "stay"], stdout=MSG_PIPE))
            group.init()
            group.start()
            second = Process(None, ident=group.puids[1])
            os.kill(parent(parent(int(second.stdout_conn.recv()))), 9)
            try:
                group.join(60)
            except DragonUserCodeError as error:
                print(error)
            group.close()
        """
    )
    done = site.dragon("--nodes", "2", program, str(mpi.python), str(PROGRAMS / "rank.py"))
    assert re.search(r"first, rank 1 \(puid \d+\) on node-1 is lost", done.stdout), done.stderr


def test_no_process_of_a_job_is_left_if_its_agent_is_killed(site: Site, mpi: Mpi) -> None:
    program = site.write(
        """
        import os, sys
        from dragon.native.process import MSG_PIPE, Process, ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.runtime.run import this_run

        if __name__ == "__main__":
            group = ProcessGroup(pmi_enabled=True)
            group.add_process(2, ProcessTemplate(sys.argv[1], [sys.argv[2], "stay"], stdout=MSG_PIPE))
            group.init()
            group.start()
            Process(None, ident=group.puids[1]).stdout_conn.recv()
            os.kill(this_run().agent.pid, 9)
            group.join()
        """
    )
    done = site.dragon(program, str(mpi.python), str(PROGRAMS / "rank.py"))
    assert done.returncode != 0
    site.assert_nothing_left()


def test_jobs_end_with_their_pmix_server_and_the_next_job_starts_a_new_one(site: Site, openmpi: Mpi) -> None:
    program = site.write(
        """
        import os, sys
        from pathlib import Path
        from dragon.native.process import MSG_PIPE, Process, ProcessTemplate
        from dragon.native.process_group import DragonUserCodeError, ProcessGroup
        from dragon.runtime.run import this_run

        def start(deed, **streams):
            group = ProcessGroup(pmi_enabled=True)
            group.add_process(2, ProcessTemplate(sys.argv[1], [sys.argv[2], deed], **streams))
            group.init()
            group.start()
            return group

        def server():
            agent = this_run().agent.pid
            children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
            return next(int(pid) for pid in children if b"pmix_server" in Path("/proc", pid, "cmdline").read_bytes())

        if __name__ == "__main__":
            groups = [start("stay", stdout=MSG_PIPE) for _ in range(2)]
            for group in groups:
                Process(None, ident=group.puids[1]).stdout_conn.recv()
            os.kill(server(), 9)
            for group in groups:
                try:
                    group.join(60)
                except DragonUserCodeError as error:
                    print(error)
                group.close()
            group = start("work")
            group.join(60)
            group.close()
        """
    )
    done = site.dragon(program, str(openmpi.python), str(PROGRAMS / "rank.py"))
    assert done.stdout.count("lost its PMIx server") == 2, done.stderr
    assert "2 ranks, sum 1" in done.stdout
    assert "dragon/agent" not in done.stderr


def test_a_rank_with_large_output_does_not_block_the_job(site: Site, mpi: Mpi) -> None:
    said, _ = run_job(site, mpi, 2, "flood")
    assert said.count("x" * 80) == 200_000
    assert said.splitlines()[-1].startswith("2 ranks")


def test_waiting_ranks_of_open_mpi_yield_only_if_there_are_more_ranks_than_cpus(site: Site, openmpi: Mpi) -> None:
    cpus = len(os.sched_getaffinity(0))
    for ranks, told in ((1, "spins"), (cpus + 1, "yields")):
        said, _ = run_job(site, openmpi, ranks, "tell-yield")
        assert said.splitlines()[0] == told


def test_several_jobs_can_run_at_once(site: Site, mpi: Mpi) -> None:
    program = site.write(
        """
        import sys
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        if __name__ == "__main__":
            groups = [ProcessGroup(pmi_enabled=True) for _ in range(4)]
            for group in groups:
                group.add_process(2, ProcessTemplate(sys.argv[1], [sys.argv[2], "work"]))
                group.init()
                group.start()
            for group in groups:
                group.join(60)
                group.close()
        """
    )
    done = site.dragon(program, str(mpi.python), str(PROGRAMS / "rank.py"))
    assert [line[:14] for line in done.stdout.splitlines()] == ["2 ranks, sum 1"] * 4, done.stderr


def test_a_batch_can_run_mpi_jobs(site: Site, mpi: Mpi) -> None:
    program = site.write(
        """
        import sys
        from dragon.native.process import ProcessTemplate
        from dragon.workflows.batch import Batch

        if __name__ == "__main__":
            with Batch() as batch:
                template = ProcessTemplate(sys.argv[1], [sys.argv[2], "work"])
                jobs = [batch.job([(3, template)]) for _ in range(2)]
                print([job.get(timeout=60) for job in jobs])
        """
    )
    done = site.dragon("--nodes", "2", "--no-label", program, str(mpi.python), str(PROGRAMS / "rank.py"))
    assert done.stdout.count("3 ranks, sum 3") == 2, done.stderr
    assert done.stdout.endswith("[[0, 0, 0], [0, 0, 0]]\n")


def test_a_python_function_has_its_rank_in_the_environment(site: Site) -> None:
    program = site.write(
        """
        import os
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.native.queue import Queue

        def rank(queue):
            os.fstat(int(os.environ["PMI_FD"]))
            queue.put((int(os.environ["PMI_RANK"]), os.environ["PMI_SIZE"]))

        if __name__ == "__main__":
            queue = Queue()
            group = ProcessGroup(pmi="pmi1")
            group.add_process(3, ProcessTemplate(rank, (queue,)))
            group.init()
            group.start()
            group.join()
            print(sorted(queue.get() for _ in range(3)))
            group.close()
        """
    )
    assert site.dragon(program).stdout == "[(0, '3'), (1, '3'), (2, '3')]\n"


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="there is no mpi4py in this environment")
@pytest.mark.parametrize(("deed", "code"), [("raise ValueError('no tea')", 1), ("raise SystemExit(3)", 3)])
def test_a_job_ends_with_a_python_function_that_fails(site: Site, deed: str, code: int) -> None:
    program = site.write(
        f"""
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import DragonUserCodeError, ProcessGroup

        def rank():
            from mpi4py import MPI
            if MPI.COMM_WORLD.rank == 1:
                {deed}
            MPI.COMM_WORLD.Barrier()

        if __name__ == "__main__":
            group = ProcessGroup(pmi="pmi1")
            group.add_process(3, ProcessTemplate(rank))
            group.init()
            group.start()
            try:
                group.join()
            except DragonUserCodeError as error:
                print(error)
            group.close()
        """
    )
    assert re.search(rf"first, rank 1 \(puid \d+\) on .* ended with exit code {code}", site.dragon(program).stdout)


def test_a_job_can_spawn_another_one(site: Site, mpich: Mpi) -> None:
    done = site.dragon(PROGRAMS / "job.py", "2", str(mpich.python), str(PROGRAMS / "spawn.py"))
    assert done.stdout == "2 2 ['child 0 of 2', 'child 1 of 2']\n", done.stderr


@pytest.mark.parametrize(("command", "told"), [("true", "without MPI_Init"), ("false", "with exit code 1")])
def test_a_job_ends_if_it_spawns_a_program_without_mpi(site: Site, mpich: Mpi, command: str, told: str) -> None:
    program = site.write("import sys; from mpi4py import MPI; MPI.COMM_WORLD.Spawn(sys.argv[1])")
    done = site.dragon(PROGRAMS / "job.py", "2", str(mpich.python), str(program), command)
    assert re.search(rf"first, rank 2 \(puid \d+\) on \S+ ended {told}", done.stdout), done.stderr


def test_jobs_can_connect_with_a_published_name(site: Site, mpich: Mpi) -> None:
    program = site.write(
        """
        import sys
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        if __name__ == "__main__":
            groups = []
            for deed in ("serve", "call"):
                group = ProcessGroup(pmi_enabled=True)
                group.add_process(1, ProcessTemplate(sys.argv[1], [sys.argv[2], deed]))
                group.init()
                group.start()
                groups.append(group)
            for group in groups:
                group.join(60)
                group.close()
        """
    )
    done = site.dragon("--nodes", "2", "--no-label", program, str(mpich.python), str(PROGRAMS / "meet.py"))
    assert done.stdout == "heard waves\n", done.stderr


def test_a_message_names_a_library_that_does_not_support_the_pmi(site: Site, openmpi: Mpi) -> None:
    _, told = run_job(site, openmpi, 2, "work", pmi="pmi1")
    assert "none of the 2 ranks" in told
    assert "Open MPI" in told


@pytest.mark.parametrize("end", ["", "; import os; os.kill(os.getpid(), 9)"], ids=["ended", "killed"])
def test_ranks_that_do_not_use_the_pmi_can_end_or_be_killed(site: Site, openmpi: Mpi, end: str) -> None:
    program = site.write(
        """
        import sys
        import time
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import DragonUserCodeError, ProcessGroup

        if __name__ == "__main__":
            group = ProcessGroup(pmi="pmi1")
            group.add_process(2, ProcessTemplate(sys.argv[1], ["-c", sys.argv[2]]))
            group.init()
            group.start()
            try:
                group.join(60)
            except DragonUserCodeError as error:
                print(error)
            group.close()
            time.sleep(1)  # the run goes on
        """
    )
    done = site.dragon(program, str(openmpi.python), f"from mpi4py import MPI{end}")
    assert ("SIGKILL" in done.stdout) == bool(end), done.stderr


def test_there_is_no_message_about_the_library_of_killed_ranks(site: Site, mpich: Mpi) -> None:
    program = site.write(
        """
        import sys
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        if __name__ == "__main__":
            group = ProcessGroup(pmi_enabled=True)
            group.add_process(2, ProcessTemplate(sys.argv[1], ["-c", "import time; time.sleep(600)"]))
            group.init()
            group.start()
            group.kill()
            group.join(60)
            group.close()
        """
    )
    done = site.dragon(program, str(mpich.python))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_error_says_that_libpmix_is_missing(site: Site, mpich: Mpi, nodes: int) -> None:
    said, _ = run_job(site, mpich, 2, "work", "--nodes", str(nodes), "--no-label", pmi="pmix")
    assert "could not be started: no libpmix.so.2 was found" in said


def test_restart_is_refused_for_a_job() -> None:
    from dragon.native.process_group import ProcessGroup

    with pytest.raises(ValueError, match="rank that was started again"):
        ProcessGroup(restart=True, pmi_enabled=True)


def test_the_example_runs_on_two_nodes(site: Site, mpi: Mpi) -> None:
    pytest.importorskip("matplotlib", reason="examples/mpi_workflow/requirements.txt is not installed")
    pytest.importorskip("tqdm", reason="examples/mpi_workflow/requirements.txt is not installed")
    settings = ["--mpi", str(mpi.folder), "--ranks", "2", "--producers", "3", "--largest", "64"]
    done = site.dragon("--nodes", "2", "--no-label", WORKFLOW, *settings)
    assert done.returncode == 0, done.stderr
    with (site.folder / "alltoall.csv").open(newline="") as file:
        rows = [(int(row["producer"]), int(row["bytes"])) for row in csv.DictReader(file)]
    assert sorted(rows) == [(producer, 2**power) for producer in range(3) for power in range(7)]
    assert (site.folder / "alltoall.png").read_bytes().startswith(b"\x89PNG")


def test_the_benchmark_over_mpi4py_prints_the_same_table(site: Site, mpi: Mpi) -> None:
    arguments = ["-m", "4", "-i", "3", "-x", "1"]
    done = site.dragon(PROGRAMS / "job.py", "2", str(mpi.python), str(WORKFLOW.parent / "alltoall.py"), *arguments)
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["1", "2", "4"], done.stderr


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_documented_workflow_runs(site: Site, mpi: Mpi, nodes: int) -> None:
    mpi.compile_alltoall(site.folder / "osu_alltoall")
    shape = ["--nodes", str(nodes), "--cpus", str({1: 12, 4: 6}[nodes]), "--no-label"]
    done = site.dragon(*shape, DOCUMENTED / "hpc_workflow_demo_highlevel.py", timeout=100)
    sizes = [str(2**power) for power in range(13)]
    for producer in range(5):
        found = re.findall(rf"INFO:consumer:{{{producer}: \('(\d+)', '[\d.]+'\)}}", done.stderr)
        # The program's consumer stops when the last producers have ended, whatever it has not read by then.
        assert found == (sizes if producer < 3 else sizes[: len(found)]), done.stderr
        assert f"INFO:parse_results {producer}:Done" in done.stderr
    ranks = {1: "node 0 has 2 ranks", 4: "node 0 has 1 ranks, node 1 has 1 ranks, node 2 has 0 ranks"}
    assert done.stderr.count(ranks[nodes]) == 5
    assert done.returncode == 0
