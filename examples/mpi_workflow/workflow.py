"""A workflow around MPI jobs: producers that each run one, parsers that read its output, a consumer that keeps results.

    dragon examples/mpi_workflow/workflow.py --mpi FOLDER
    dragon --nodes 4 --cpus 6 examples/mpi_workflow/workflow.py --mpi FOLDER

Each producer runs an all-to-all benchmark over its ranks; at most two run at a time, five in all. Every line that the
first rank prints goes over a connection to the producer's parser, which takes the figures out of it, and from there
through a queue to the consumer. That shows the progress and writes a CSV file; a plot is drawn at the end.
"""

import argparse
import csv
import multiprocessing as mp
import re
import shutil
import subprocess
import sys
from pathlib import Path

import dragon  # noqa: F401  (registers the start method)
from dragon.globalservices import node
from dragon.globalservices.process import multi_join
from dragon.infrastructure.connection import Connection
from dragon.native.process import MSG_DEVNULL, MSG_PIPE, Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue

HERE = Path(__file__).resolve().parent
ROW = re.compile(r"^(\d+)\s+([\d.]+)")


def produce(number: int, ranks: int, command: list[str], results: Queue) -> None:
    """Run one MPI job, and have a process of its own parse what the job's first rank prints."""
    program, *arguments = command
    job = ProcessGroup(pmi_enabled=True, name=f"alltoall-{number}")
    job.add_process(1, ProcessTemplate(program, arguments, stdout=MSG_PIPE))
    if ranks > 1:
        job.add_process(ranks - 1, ProcessTemplate(program, arguments, stdout=MSG_DEVNULL))
    job.init()
    job.start()
    members = [Process(None, ident=puid) for puid in job.puids]
    on = sorted({member.node for member in members})
    print(f"producer {number}: {ranks} ranks on nodes {on}", flush=True)
    parser = Process(target=parse, args=(number, members[0].stdout_conn, results))
    parser.start()
    job.join()
    parser.join()
    job.close()


def parse(number: int, output: Connection, results: Queue) -> None:
    """Put (producer, bytes, microseconds) into the queue for every row of the table."""
    try:
        while True:
            row = ROW.match(output.recv())
            if row:
                results.put((number, int(row[1]), float(row[2])))
    except EOFError:
        pass


def consume(results: Queue, expected: int, file: str) -> None:
    """Write the results to a CSV file, and show progress; None is the end."""
    from tqdm import tqdm

    with open(file, "w", newline="") as out, tqdm(total=expected, unit=" rows", desc="results") as bar:
        table = csv.writer(out)
        table.writerow(("producer", "bytes", "microseconds"))
        while (row := results.get(timeout=None)) is not None:
            table.writerow(row)
            bar.update()


def plot(file: str, picture: str) -> None:
    """Draw the latencies of every producer over the size of the messages."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    curves: dict[str, list[tuple[int, float]]] = {}
    with open(file, newline="") as rows:
        for row in csv.DictReader(rows):
            curves.setdefault(row["producer"], []).append((int(row["bytes"]), float(row["microseconds"])))
    for producer, points in sorted(curves.items()):
        pyplot.loglog(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=f"producer {producer}")
    pyplot.xlabel("bytes for each pair of ranks")
    pyplot.ylabel("latency of MPI_Alltoall (µs)")
    pyplot.grid(which="both", alpha=0.3)
    pyplot.legend()
    pyplot.savefig(picture, dpi=120, bbox_inches="tight")


def benchmark(folder: Path | None) -> list[str]:
    """Return the command of one rank: the C program, compiled now, or the mpi4py program if there is no mpicc."""
    path = str(folder) if folder else None
    compiler = shutil.which("mpicc", path=path)
    if compiler and (shutil.which("cc") or shutil.which("gcc")):
        target = Path.cwd() / "alltoall"
        subprocess.run([compiler, "-O2", "-o", target, HERE / "alltoall.c"], check=True)
        return [str(target)]
    python = shutil.which("python3", path=path) or sys.executable
    return [python, str(HERE / "alltoall.py")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", type=Path, metavar="FOLDER", help="where mpicc, or python3 with mpi4py, is; else PATH")
    parser.add_argument("--producers", type=int, default=5, help="MPI jobs in all")
    parser.add_argument("--at-once", type=int, default=2, help="of them at a time")
    parser.add_argument("--ranks", type=int, help="of each job; default: all CPUs but two of each node, shared")
    parser.add_argument("--largest", type=int, default=4096, help="largest message in bytes")
    parser.add_argument("--csv", default="alltoall.csv", help="file for the results")
    parser.add_argument("--plot", default="alltoall.png", help="file for the picture")
    options = parser.parse_args()
    nodes = len(node.get_list())
    ranks = options.ranks or max(2, (mp.cpu_count() - 2 * nodes) // options.at_once)
    command = [*benchmark(options.mpi), "-m", str(options.largest)]

    results = Queue()
    sizes = options.largest.bit_length()
    consumer = Process(target=consume, args=(results, options.producers * sizes, options.csv))
    consumer.start()
    running: dict[int, Process] = {}
    waiting = list(range(options.producers))
    failed = 0
    while waiting or running:
        while waiting and len(running) < options.at_once:
            producer = Process(target=produce, args=(waiting.pop(0), ranks, command, results))
            producer.start()
            running[producer.puid] = producer
        ended, _ = multi_join(list(running), join_all=False)
        for puid, code in ended or []:
            del running[puid]
            failed += code != 0
    results.put(None)
    consumer.join()
    if failed:
        sys.exit(f"{failed} of {options.producers} producers failed")
    plot(options.csv, options.plot)
    print(f"results in {options.csv}, the plot in {options.plot}")


if __name__ == "__main__":
    mp.set_start_method("dragon")
    main()
