"""How long MPI jobs take to start, and how fast they are, beside the `mpiexec` of the same library.

    dragon benchmarks/mpi.py FOLDER                    one node: start, ten jobs at once, a table of latencies
    dragon --nodes 4 --cpus 8 benchmarks/mpi.py FOLDER --over-nodes    32 ranks over all nodes

FOLDER is the `bin` of an MPI library, where mpicc and mpiexec are. Medians of five; seconds, then microseconds.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dragon.native.process import MSG_DEVNULL, MSG_PIPE, Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup

ALLTOALL = Path(__file__).resolve().parents[1] / "examples" / "mpi_workflow" / "alltoall.c"
HELLO = "#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }\n"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(ranks: int, program: str, *arguments: str, stdout: int = MSG_DEVNULL) -> ProcessGroup:
    job = ProcessGroup(pmi_enabled=True)
    job.add_process(1, ProcessTemplate(program, list(arguments), stdout=stdout))
    if ranks > 1:
        job.add_process(ranks - 1, ProcessTemplate(program, list(arguments), stdout=MSG_DEVNULL))
    job.init()
    job.start()
    return job


def jobs(count: int, ranks: int, program: str) -> None:
    """Run `count` jobs at once."""
    for job in [start(ranks, program) for _ in range(count)]:
        job.join()
        job.close()


def median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def table(output: str) -> dict[int, float]:
    rows = [line.split() for line in output.splitlines() if line and line[0].isdigit()]
    return {int(size): float(latency) for size, latency in rows}


def latencies(program: str, arguments: list[str]) -> dict[int, float]:
    job = start(2, program, *arguments, stdout=MSG_PIPE)
    connection = Process(None, ident=job.puids[0]).stdout_conn
    assert connection is not None
    lines = []
    try:
        while True:
            lines.append(connection.recv())
    except EOFError:
        job.join()
    job.close()
    return table("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--over-nodes", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hello, alltoall = f"{folder}/hello", f"{folder}/alltoall"
        Path(folder, "hello.c").write_text(HELLO)
        for target, source in ((hello, f"{folder}/hello.c"), (alltoall, str(ALLTOALL))):
            subprocess.run([options.folder / "mpicc", "-O2", "-o", target, source], check=True)
        if options.over_nodes:
            print(f"32 ranks over the nodes: {median(lambda: jobs(1, 32, hello)):.2f} s")
            return
        mpiexec = [str(options.folder / "mpiexec")]
        environment = dict(os.environ)
        is_open = (options.folder / "ompi_info").exists()
        if is_open:
            environment |= AS_ROOT

        def run(ranks: int, *command: str) -> subprocess.Popen[str]:
            # A variable of Open MPI, which otherwise requests one CPU per rank; with it all ranks yield.
            crowded = ["--oversubscribe"] if is_open and ranks > 2 else []
            words = [*mpiexec, *crowded, "-n", str(ranks), *command]
            return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

        def several(count: int, ranks: int) -> None:
            for process in [run(ranks, hello) for _ in range(count)]:
                process.communicate()

        for count, ranks in ((1, 4), (10, 2)):
            ours = median(partial(jobs, count, ranks, hello))
            theirs = median(partial(several, count, ranks))
            print(f"{count} x {ranks} ranks: dragon {ours:.3f} s, mpiexec {theirs:.3f} s, ratio {ours / theirs:.2f}")
        arguments = ["-m", "1048576", "-i", "200"]
        own, other = latencies(alltoall, arguments), table(run(2, alltoall, *arguments).communicate()[0])
        print(f"{'bytes':>8} {'dragon':>10} {'mpiexec':>10}   all-to-all of 2 ranks, us")
        for size, latency in own.items():
            print(f"{size:8d} {latency:10.2f} {other[size]:10.2f}")


if __name__ == "__main__":
    main()
