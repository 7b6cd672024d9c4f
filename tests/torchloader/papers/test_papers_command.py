"""`python -m torchloader_papers`, and its policies and orders in other commands."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torchloader_papers.__main__ import main

PACKAGE = Path(__file__).parents[3] / "benchmarks" / "papers"
TRACES = Path(__file__).parents[1] / "traces"
SMALL = ["--jobs", "8", "--seeds", "2", "--nodes", "1", "--minutes", "1"]
POLLUX = "name,time,application,num_replicas,batch_size\na,0,cifar10,1,128\nb,5,ncf,2,256\nc,9,imagenet,64,6400\n"


def test_a_trace_is_simulated_without_the_jobs_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "workload.csv").write_text(POLLUX)
    trace = ["--trace", str(tmp_path / "workload.csv"), "--format", "pollux", "--load", "1"]
    assert main([*trace, "--seeds", "1", "--policy", "even"]) == 0
    said = capsys.readouterr()
    assert "left out, as the cluster has 16 devices: 1 job" in said.err
    assert said.out.splitlines()[1].startswith("even")


def test_jobs_of_a_mix_of_tasks_can_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    mix = ["--mix", "20,70,10", "--rate", "2", "--several", "--policy", "synergy", "--policy", "static"]
    assert main([*SMALL, *mix]) == 0
    assert "2 workloads of 8 jobs on 4 devices" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--promote", "--patience"])
def test_promotion_and_patience_change_who_waits(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(TRACES / "pollux" / "workload-2.csv")
    words = ["--trace", trace, "--format", "pollux", "--nodes", "16", "--cores", "48", "--seeds", "1", "--start", "30"]
    printed = []
    for value in ("0.5", "1000000"):
        rows = ["--policy", "even", "--order", "tiresias", "--sizes", "fixed", option, value, "--json"]
        assert main([*words, *rows]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] != printed[1]


def test_sizes_are_rows_beside_the_orders_of_fixed_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    traces = TRACES / "pollux"
    files = [word for number in (1, 2) for word in ("--trace", str(traces / f"workload-{number}.csv"))]
    rows = ["--policy", "even", "--order", "tiresias", "--sizes", "fixed", "--sizes", "optimus", "--sizes", "pollux"]
    cluster = ["--format", "pollux", "--jobs", "12", "--nodes", "16", "--seeds", "1", "--start", "30"]
    assert main([*files, *cluster, *rows]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["even+tiresias", "even+optimus", "even+pollux"]
    assert "2 workloads of 12 jobs" in lines[4]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--trace", "no-such-file", "--format", "helios"],
            "papers: no-such-file: No such file or directory",
        ),
        (["--trace", "x"], "--trace FILE and --format together"),
        (["--mix", "20,70"], "must be 3 numbers from 0 on"),
        (["--mix", "0,0,0"], "not all 0"),
        (["--mix", "1,1,1", "--load", "1"], "--rate instead of --load"),
        (["--rate", "9"], "need --mix"),
        (["--sizes", "pollux"], "--sizes needs jobs of known goodput: --trace FILE --format pollux"),
        (["--sizes", "gandiva"], "invalid choice: 'gandiva'"),
    ],
)
def test_invalid_arguments_are_reported(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(words) == 2
    assert says in capsys.readouterr().err


def test_policies_and_orders_of_an_installed_package_can_be_chosen(tmp_path: Path) -> None:
    made = tmp_path / "torchloader_papers-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: torchloader-papers\nVersion: 1\n")
    written = (PACKAGE / "pyproject.toml").read_text().split("[project.entry-points.")[1:]
    groups = (part.split("[tool.")[0].replace('"', "").replace("]", "", 1).partition("\n") for part in written)
    (made / "entry_points.txt").write_text("".join(f"[{name}]\n{entries}" for name, _, entries in groups))
    words = ["simulate", *SMALL, "--policy", "synergy", "--policy", "even", "--order", "gavel", "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "torchloader", *words],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{PACKAGE}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [row["policy"] for row in json.loads(ran.stdout)] == ["synergy+gavel", "even+gavel"]
