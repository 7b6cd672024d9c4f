"""The documented workload: three networks on two GPUs of each of two nodes, which are simulated here."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import pytest

from conftest import Site

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchloader"
WORKLOAD = EXAMPLE / "dl_scheduler-test.conf.csv"


def test_missing_resources_are_reported_for_each_job(site: Site) -> None:
    pytest.importorskip("torch")
    done = site.run(sys.executable, EXAMPLE / "dl_scheduler_test.py", "--folder", str(site.folder / "run"))
    assert done.returncode == 1
    for name in ("resnet10-1", "vgg11-2", "googlenet1-3"):
        (line,) = (line for line in done.stdout.splitlines() if name in line and "failed" in line)
        assert "it needs 2 nodes, the host d3093, GPU" in line
        assert "--device cpu --rehearse" in line


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "devices"),
    [
        (("resnet10-1", "vgg11-2", "googlenet1-3"), None),
        # Two of them on one device of each node: a quarter of the processes, each of which imports PyTorch.
        (("resnet10-1", "googlenet1-2"), '["0" "0"]'),
    ],
    ids=["whole", "part"],
)
def test_the_workload_finishes_on_simulated_nodes(site: Site, names: tuple[str, ...], devices: str | None) -> None:
    pytest.importorskip("torch")
    # As it stands but for the batch, which two cores would take minutes for.
    workload = WORKLOAD.read_text().replace(" 512,", " 16,")
    if devices is not None:
        kept = [row for row in workload.splitlines(keepends=True) if not row.startswith("vgg")]
        workload = re.sub(r'\["\d \d" "\d \d"\]', devices, "".join(kept))
    cores = "12" if devices is None else "4"
    options = ["--device", "cpu", "--rehearse", "--cores", cores, "--iterations", "2", "--folder", site.folder / "run"]
    run = [sys.executable, "-m", "torchloader", "run", site.write(workload, "jobs.csv"), *options]
    done = site.run(*run, timeout=270, env={"OMP_NUM_THREADS": "1"})  # the ranks share two cores
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("→ finished") == len(names)
    folder = site.folder / "test-48worker-2node-mod3"
    for name in names:
        for rank in range(4 if devices is None else 2):
            with (folder / f"trace-{name}-iterations-{rank}.csv").open() as file:
                rows = list(csv.DictReader(file))
            assert [row["iteration"] for row in rows] == ["1", "2"]
            assert all(float(row["forward"]) > 0 for row in rows)
        assert "loss" in json.loads((folder / f"trace-{name}-summary-0.json").read_text())


def test_the_scheduler_works_without_pytorch(site: Site) -> None:
    done = site.python(
        """
        import sys
        sys.modules["torch"] = None
        import torchloader.cli.run, torchloader.cli.simulate, torchloader.cli.status, torchloader.service.head
        import torchloader.cli.report, torchloader.cli.profile, torchloader.loader
        print("loaded")
        """
    )
    assert done.stdout == "loaded\n", done.stderr
