"""The master of the example: `python3 -i dl_scheduler_test.py`, then `run()`.

Reads dl_cluster_config.xml and dl_scheduler-test.conf.csv beside it. In an allocation of Slurm or PBS the nodes are
those of the allocation; elsewhere those that the cluster file names, reached by ssh. What run() is given goes to
`torchloader run`: run("--policy", "even"), or where there is no GPU run("--device", "cpu", "--rehearse").
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(*options: str) -> int:
    """Run the workload; 0 where all of its jobs came to their end."""
    workload, cluster = HERE / "dl_scheduler-test.conf.csv", HERE / "dl_cluster_config.xml"
    return subprocess.call(
        [sys.executable, "-m", "torchloader", "run", str(workload), "--cluster", str(cluster), *options]
    )


if __name__ == "__main__":
    if sys.argv[1:] or not sys.flags.interactive:
        sys.exit(run(*sys.argv[1:]))
    print("run() starts the workload")
