"""`torchloader simulate`, and the choice of commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchloader.cli.main import main
from torchloader.scheduling.log import read
from torchloader.simulation.result import JobResult, Result
from torchloader.simulation.simulator import compare, table

SMALL = ["--jobs", "8", "--seeds", "2", "--nodes", "1", "--minutes", "1"]
WORKLOAD = """\
arch,depth,batch,workers,output_folder,master,port,arrival_time,cuda_device,start_iter,start_epoch,end_iter,end_epoch,node_size
resnet, 10, 512, 16, "test-48worker-2node-mod3",d3093, 12448, 1, ["0 1" "0 1"], 0, 1, 500, 1, 2
vgg, 11, 512, 16, "test-48worker-2node-mod3",d3093, 23448, 1, ["1 2" "1 2"], 0, 1, 500, 1, 2
googlenet, 1, 512, 16, "test-48worker-2node-mod3",d3093, 58448,  1, ["0 2" "0 2"], 0, 1, 500, 1, 2
"""


def test_the_table_compares_policies_with_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *SMALL, "--policy", "jct", "--policy", "even"]) == 0
    header, first, second, last = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["policy", "completion,"]
    assert (first.split()[0], second.split()[0]) == ("jct", "even")
    assert "±" in first
    assert last == (
        "the last three columns are against even; simulated, 2 workloads of 8 jobs on 4 devices and 24 cores of 1 node"
    )


def test_equal_commands_print_equal_tables(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert main(["simulate", *SMALL, "--json"]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]
    assert [row["policy"] for row in printed[0]] == ["proportional", "even", "waa-fill", "gpu-proportional"]


def test_workers_on_any_node_shorten_jobs_on_nodes_with_few_cores(capsys: pytest.CaptureFixture[str]) -> None:
    took = []
    cluster = ["--jobs", "30", "--seeds", "3", "--nodes", "6", "--gpus", "2", "--cores", "6", "--load", "0.6"]
    for words in ([], ["--anywhere"]):
        assert (
            main(["simulate", *cluster, "--policy", "proportional", "--policy", "gpu-proportional", "--json", *words])
            == 0
        )
        took.append([row["completion"]["mean"] for row in json.loads(capsys.readouterr().out)])
    (ours, fields), (anywhere, same) = took
    assert anywhere < ours < fields == same


@pytest.mark.parametrize(
    "option", [["--start", "30"], ["--error", "1.5"], ["--mode", "1"], ["--cores", "6"]], ids=" ".join
)
def test_jobs_take_longer_on_a_worse_cluster(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    took = []
    for words in ([], option):
        assert main(["simulate", *SMALL, "--policy", "proportional", "--json", *words]) == 0
        took.append(json.loads(capsys.readouterr().out)[0]["completion"]["mean"])
    assert took[1] > took[0]


def test_a_workload_file_is_simulated_on_its_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.csv").write_text(WORKLOAD)
    assert main(["simulate", str(tmp_path / "jobs.csv")]) == 0
    assert "1 workload of 3 jobs on 6 devices and 48 cores of 2 nodes" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "named"), [("--nodes", 2), ("--gpus", 3)])
def test_a_cluster_smaller_than_the_workload_requires_is_refused(
    option: str, named: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.csv").write_text(WORKLOAD)
    assert main(["simulate", str(tmp_path / "jobs.csv"), option, "1"]) == 2
    assert f"{option} 1: the jobs of {tmp_path / 'jobs.csv'} name {named}" in capsys.readouterr().err


def test_the_log_of_a_run_can_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = ["simulate", *SMALL, "--seeds", "1", "--policy", "proportional"]
    assert main([*once, "--out", str(tmp_path)]) == 0
    log = tmp_path / "proportional" / "events.jsonl"
    assert len(read(log)) > 8 * 3
    capsys.readouterr()
    assert main([*once, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["simulate", str(log), "--nodes", "1", "--gpus", "4", "--policy", "proportional", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-file.csv"], "no such file"),
        (["--policy", "jct", "--against", "even"], "not among the policies"),
        (["--policy", "fare"], "invalid choice: 'fare'"),
        (["--jobs", "0"], "at least 1"),
        (["--queues", "60,60"], "above 0 that rise"),
        (["--queues", "soon"], "above 0 that rise"),
    ],
)
def test_invalid_arguments_are_reported(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["simulate", *words])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert says in capsys.readouterr().err


def test_the_error_about_the_folder_of_a_run_names_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "events.jsonl"
    log.touch()
    assert main(["simulate", str(tmp_path)]) == 2
    said = f"torchloader simulate: {tmp_path} is the folder of a run; to simulate its log: {log}\n"
    assert capsys.readouterr().err == said


def test_a_difference_of_zero_has_no_minus_sign() -> None:
    result = Result("even", [JobResult("a", "", 1, 0.0, 0.0, 1.0, 1.0, 1, 0, 0.0, held=1.0, worked=1.0)], (), ())
    longer = Result("jct", [JobResult("a", "", 1, 0.0, 0.0, 0.99999, 1.0, 1, 0, 0.0, held=0.99999, worked=1.0)], (), ())
    assert "-0.0 %" not in table(compare([[result], [longer]], against=0, devices=1), "even")


def test_the_error_about_a_misspelled_command_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulat"])
    assert ended.value.code == 2
    assert "did you mean simulate?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["x"])
    assert "no command 'x'; `torchloader -h` shows them" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["simulate", "--help"]], ids=" ".join)
def test_the_help_has_examples_of_simulate(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert "  torchloader simulate  " in capsys.readouterr().out


def test_each_policy_is_simulated_with_each_order(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["--policy", "even", "--policy", "jct", "--order", "arrival", "--order", "tiresias", "--against", "even"]
    assert main(["simulate", *SMALL, *rows]) == 0
    _, *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["even", "jct", "even+tiresias", "jct+tiresias"]
    assert "against even;" in last


def test_queues_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    took = []
    for queues in ("60", "60,600", "1e8"):
        rows = ["--jobs", "20", "--policy", "even", "--order", "tiresias", "--queues", queues, "--json"]
        assert main(["simulate", *SMALL, *rows]) == 0
        took.append(json.loads(capsys.readouterr().out)[0]["completion"]["mean"])
    assert len(set(took)) == 3
