"""MPI jobs that the launcher of the site starts: a real srun, with MPICH in place of Cray MPICH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.agent.mpi import relay
from dragon.runtime.site_launcher import launch_command
from peers import dragon, front_end, hear
from peers.mpi import Mpi
from peers.slurm import Slurm

PROGRAMS = Path(__file__).parent / "programs"
IN_SALLOC = ["salloc", "--quiet", "-N3"]

# It gives a rank what PALS gives it: the numbers go from the first host to the last, and the environment is handed on.
MPIEXEC = """\
#!/bin/sh
test "$1 $2 $3 $4 $5 $6 $7 $8" = "--np 4 --ppn 2 --hosts node-0,node-1 --cpu-bind none" || exit 99
shift 8
for rank in 0 1 2 3; do PALS_RANKID=$rank PALS_APID=apid "$@" < /dev/null & done
wait
"""


@pytest.fixture
def of_cray(site: Site, mpich: Mpi) -> Path:
    """Compile our benchmark with a libmpi_cray that is MPICH."""
    library = site.folder / "libmpi_cray.so.12"
    mpi = mpich.folder.parent / "lib"
    linked = ["-Wl,--no-as-needed", f"-L{mpi}", "-lmpi", f"-Wl,-rpath,{mpi}"]
    source = site.write("int cray = 1;\n", "cray.c")
    subprocess.run(["cc", "-shared", "-o", library, f"-Wl,-soname,{library.name}", source, *linked], check=True)
    program = site.folder / "osu_alltoall"
    mpich.compile_alltoall(program, "-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{site.folder}")
    return program


def plugin(slurm: Slurm, name: str) -> dict[str, str]:
    """Return the environment with which srun uses that plugin."""
    environment = {**os.environ, **slurm.environment}
    told = subprocess.run(["srun", "--mpi=list"], env=environment, capture_output=True, text=True, check=False)
    if name not in told.stdout + told.stderr:
        pytest.skip(f"this Slurm has no plugin {name}")
    return {**slurm.environment, "SLURM_MPI_TYPE": name}


def run_over(site: Site, environment: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program over the nodes of an allocation."""
    return site.run(*IN_SALLOC, *dragon(*words), env=environment)


def test_ranks_with_the_library_of_cray_are_started_by_srun(site: Site, slurm: Slurm, of_cray: Path) -> None:
    job = [PROGRAMS / "job.py", "4", of_cray, "-m", "4", "-i", "3", "-x", "1"]
    done = run_over(site, plugin(slurm, "pmi2"), *job)
    lines = done.stdout.splitlines()
    assert lines[0].endswith(", 4 ranks"), done.stderr
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "4"]


def test_ranks_are_on_the_nodes_of_policies_and_srun_has_their_placement(site: Site, slurm: Slurm) -> None:
    report = [sys.executable, str(PROGRAMS / "report.py")]
    done = run_over(site, plugin(slurm, "cray_shasta"), PROGRAMS / "placed.py", *report, "n3,n1,n2,n1")
    assert done.stdout.splitlines() == [
        "rank 0 of 4, number 0 on node 2: n3",
        "rank 1 of 4, number 0 on node 0: n1",
        "rank 2 of 4, number 0 on node 1: n2",
        "rank 3 of 4, number 1 on node 0: n1",
        "True",
    ], done.stderr


def test_a_python_function_inherits_the_variables_and_descriptor_of_its_rank(site: Site, slurm: Slurm) -> None:
    program = site.write(
        """
        import os, socket
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.native.queue import Queue

        def rank(queue):
            with socket.socket(fileno=int(os.environ["PMI_FD"])) as step:
                step.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\\n")
                queue.put((int(os.environ["PMI_RANK"]), step.recv(1024).split()[1]))
                step.sendall(b"cmd=finalize\\n")
                step.recv(1024)

        if __name__ == "__main__":
            queue = Queue()
            group = ProcessGroup(pmi="launcher")
            group.add_process(3, ProcessTemplate(rank, (queue,)))
            group.init()
            group.start()
            group.join(60)
            print(sorted(queue.get() for _ in range(3)))
            group.close()
        """
    )
    done = run_over(site, plugin(slurm, "pmi2"), program)
    assert done.stdout == "[(0, b'rc=0'), (1, b'rc=0'), (2, b'rc=0')]\n", done.stderr


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("fail", "ended with exit code 3; it last wrote:\nno coffee"),
        ("die", "ended with signal SIGKILL"),
    ],
)
def test_a_job_ends_with_the_rank_that_fails(site: Site, slurm: Slurm, mpich: Mpi, deed: str, told: str) -> None:
    job = ["--pmi", "launcher", "3", str(mpich.python), str(PROGRAMS / "rank.py"), deed]
    done = run_over(site, plugin(slurm, "pmi2"), PROGRAMS / "job.py", *job)
    assert re.search(rf"first, rank 1 \(puid \d+\) on n2 {told}", done.stdout), done.stderr


def test_a_job_ends_if_a_rank_aborts_it(site: Site, slurm: Slurm, mpich: Mpi) -> None:
    job = ["--pmi", "launcher", "3", str(mpich.python), str(PROGRAMS / "rank.py"), "abort"]
    done = run_over(site, plugin(slurm, "pmi2"), PROGRAMS / "job.py", *job)
    assert "Error(s) in user-provided code" in done.stdout
    assert "application called MPI_Abort(MPI_COMM_WORLD, 5)" in done.stderr


def test_a_job_ends_with_its_launcher(site: Site, slurm: Slurm) -> None:
    done = run_over(site, slurm.environment, PROGRAMS / "lost.py", "srun")
    assert re.search(r"first, rank \d .* lost its launcher: srun ended with signal SIGKILL", done.stdout), done.stderr
    assert done.stdout.endswith("{-9}\n")


def test_a_job_ends_if_a_process_that_its_launcher_started_is_killed(site: Site, slurm: Slurm) -> None:
    done = run_over(site, slurm.environment, PROGRAMS / "lost.py", Path(sys.executable).name)
    assert re.search(r"first, rank \d .* was ended by its launcher, srun", done.stdout), done
    assert done.stdout.endswith("{-9}\n")


def test_a_job_can_be_killed_and_followed_by_another(site: Site, slurm: Slurm) -> None:
    program = site.write(
        """
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        if __name__ == "__main__":
            for deed, arguments in (("kill", ["600"]), ("stop", ["600"]), ("join", ["0"])):
                group = ProcessGroup(pmi="launcher")
                group.add_process(3, ProcessTemplate("sleep", arguments))
                group.init()
                group.start()
                getattr(group, deed)()
                group.join(30)
                print({code for _, code in group.exit_status})
                group.close()
        """
    )
    done = run_over(site, slurm.environment, program)
    assert done.stdout == "{-9}\n{-2}\n{0}\n", done.stderr


def test_a_job_ends_with_the_run(site: Site, slurm: Slurm) -> None:
    process = slurm.start(site, PROGRAMS / "job.py", "--pmi", "launcher", "3", "sh", "-c", "echo ready; exec sleep 600")
    hear(site, process, 3)
    front_end(process).kill()
    process.communicate(timeout=60)
    site.assert_nothing_left()


def test_the_error_about_a_failed_launcher_has_its_output(site: Site, slurm: Slurm) -> None:
    rehearsal = ["--nodes", "2", "--cpus", "1"]  # of which Slurm does not know the nodes
    done = run_over(site, slurm.environment, *rehearsal, PROGRAMS / "job.py", "--pmi", "launcher", "2", "true")
    assert "could not be started: srun ended with exit code 1; it last wrote:\nsrun: error: " in done.stdout, (
        done.stderr
    )


def test_a_job_without_a_launcher_is_refused(site: Site, of_cray: Path) -> None:
    (site.folder / "bin").mkdir()
    (site.folder / "bin" / "ldd").symlink_to(str(shutil.which("ldd")))
    done = site.dragon(PROGRAMS / "job.py", "2", of_cray, env={"PATH": str(site.folder / "bin")})
    assert re.search(
        r"NotSupportedError: Cray MPICH \(.*libmpi_cray.so.12\) is started by the launcher of its site only: "
        r"there is none on this machine \(srun, mpiexec\)",
        done.stderr,
    )


def test_a_job_outside_an_allocation_is_refused(site: Site, slurm: Slurm) -> None:
    done = site.dragon(PROGRAMS / "job.py", "--pmi", "launcher", "2", "true", env=slurm.environment)
    assert re.search(r"NotSupportedError: .*/srun starts nothing outside of an allocation", done.stderr), done.stderr


def in_place_of_pals(site: Site, script: str) -> dict[str, str]:
    """Return the environment in which a script is the `mpiexec` of PALS, for two simulated nodes."""
    mpiexec = site.folder / "opt" / "pals" / "bin" / "mpiexec"
    mpiexec.parent.mkdir(parents=True)
    mpiexec.write_text(script)
    mpiexec.chmod(0o755)
    (site.folder / "nodes").write_text("node-0\nnode-1\n")
    return {"PBS_NODEFILE": str(site.folder / "nodes"), "PATH": f"{mpiexec.parent}:{os.environ['PATH']}"}


def test_pals_starts_the_ranks(site: Site) -> None:
    report = ["sh", "-c", "echo rank $PALS_RANKID of $PALS_APID on $(hostname)"]
    hosts = "node-0,node-0,node-1,node-1"
    program = [PROGRAMS / "placed.py", *report, hosts]
    done = site.dragon("--nodes", "2", "--cpus", "2", "--no-label", *program, env=in_place_of_pals(site, MPIEXEC))
    said = [f"rank {rank} of apid on {host}" for rank, host in enumerate(hosts.split(","))]
    assert done.stdout.splitlines() == [*said, "True"], done.stderr


def test_a_job_whose_launcher_hangs_can_be_ended(site: Site) -> None:
    program = site.write(
        """
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        if __name__ == "__main__":
            group = ProcessGroup(pmi="launcher", walltime=1)
            group.add_process(2, ProcessTemplate("true"))
            group.init()
            group.start()
            group.join(10)
            print({code for _, code in group.exit_status})
            group.close()
        """
    )
    environment = in_place_of_pals(site, "#!/bin/sh\nexec sleep 600\n")
    done = site.dragon("--nodes", "2", "--cpus", "2", program, env=environment, timeout=20)
    assert done.stdout == "{127}\n", done.stderr


def test_the_command_for_pals_has_a_part_for_each_sequence_of_ranks_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text("one.site\ntwo.site\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    command = launch_command("/opt/pals/bin/mpiexec", ["one", "two", "one", "one"], tmp_path / "hosts", ["task"])
    assert " ".join(command[1:]) == (
        "--np 1 --ppn 1 --hosts one.site --cpu-bind none task : "
        "--np 1 --ppn 1 --hosts two.site --cpu-bind none task : "
        "--np 2 --ppn 2 --hosts one.site --cpu-bind none task"
    )


def test_a_rank_that_is_started_on_an_unexpected_node_reports_an_error(site: Site) -> None:
    environment = {relay.JOB: "dragon-of-another-node", "SLURM_PROCID": "3"}
    done = site.run(sys.executable, "-I", "-S", relay.__file__, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch("dragon: rank 3 was started on .*, where its job does not expect it\n", done.stderr)
