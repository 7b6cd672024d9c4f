"""Workload files: columns are read by name, and errors have their row and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloader.inputs.job import Devices, Job, Workload
from torchloader.inputs.workload import COLUMNS, read_workload

SEED = """\
arch,depth,batch,workers,output_folder,master,port,arrival_time,cuda_device,start_iter,start_epoch,end_iter,end_epoch,node_size
resnet, 10, 512, 16, "test-48worker-2node-mod3",d3093, 12448, 1, ["0 1" "0 1"], 0, 1, 500, 1, 2
vgg, 11, 512, 16, "test-48worker-2node-mod3",d3093, 23448, 1, ["1 2" "1 2"], 0, 1, 500, 1, 2
googlenet, 1, 512, 16, "test-48worker-2node-mod3",d3093, 58448,  1, ["0 2" "0 2"], 0, 1, 500, 1, 2
"""
GOOD = {
    "arch": "resnet",
    "depth": "10",
    "batch": "512",
    "workers": "16",
    "output_folder": "out",
    "master": "d3093",
    "port": "12448",
    "arrival_time": "1",
    "cuda_device": '["0 1" "0 1"]',
    "start_iter": "0",
    "start_epoch": "1",
    "end_iter": "500",
    "end_epoch": "1",
    "node_size": "2",
}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workload")


def read(folder: Path, text: str) -> Workload:
    path = folder / "jobs.csv"
    path.write_text(text)
    return read_workload(path)


def rows(*changes: dict[str, str]) -> str:
    lines = [",".join(COLUMNS)]
    for place, change in enumerate(changes):
        row = {**GOOD, "port": str(12448 + place), **change}
        lines.append(", ".join(row[column] for column in COLUMNS))
    return "\n".join(lines)


def test_the_example_of_the_document_is_read_without_changes(folder: Path) -> None:
    workload = read(folder, SEED)
    assert workload.errors == ()
    assert [job.name for job in workload.jobs] == ["resnet10-1", "vgg11-2", "googlenet1-3"]
    assert workload.jobs[0] == Job(
        name="resnet10-1",
        arch="resnet",
        depth=10,
        batch=512,
        workers=16,
        output_folder="test-48worker-2node-mod3",
        master="d3093",
        port=12448,
        arrival=1.0,
        devices=Devices(((0, 1), (0, 1))),
        start_iter=0,
        start_epoch=1,
        end_iter=500,
        end_epoch=1,
    )


def test_batch_and_workers_are_totals_of_all_devices(folder: Path) -> None:
    job = read(folder, SEED).jobs[0]
    assert (job.devices.count, job.workers, job.iterations) == (4, 16, 500)


@pytest.mark.parametrize(
    ("cell", "devices"),
    [
        ('["0 1" "0 1"]', Devices(((0, 1), (0, 1)))),
        ('["0 1", "2,3"]', Devices(((0, 1), (2, 3)))),
        ("['0 1' '0 1']", Devices(((0, 1), (0, 1)))),
        ('"[""0 1"" ""0 1""]"', Devices(((0, 1), (0, 1)))),
        ('"0 1"', Devices(((0, 1),))),
        ("0 1", Devices(((0, 1),))),
        ("0", Devices(((0,),))),
        ("[0 1]", Devices(((0, 1),))),
        ("{'hostA':[0 1]}", Devices(((0, 1),), ("hostA",))),
        ("""{'hostA':[0, 1], "b.example.org" : [2 3]}""", Devices(((0, 1), (2, 3)), ("hostA", "b.example.org"))),
    ],
)
def test_devices_can_be_written_in_three_formats(folder: Path, cell: str, devices: Devices) -> None:
    nodes = str(len(devices.by_node))
    workload = read(folder, rows({"cuda_device": cell, "node_size": nodes}))
    assert workload.errors == ()
    assert workload.jobs[0].devices == devices


def test_columns_can_be_in_any_order_and_others_are_ignored(folder: Path) -> None:
    names = ["remark", *reversed(COLUMNS)]
    row = {**GOOD, "remark": '"first, of many"'}
    workload = read(folder, f"{' , '.join(names)}\r\n\r\n{','.join(row[name] for name in names)}\r\n")
    assert workload.errors == ()
    assert workload.jobs[0].arch == "resnet"


@pytest.mark.parametrize(
    ("column", "found", "expected"),
    [
        ("arch", "alexnet", "one of resnet, vgg, googlenet"),
        ("depth", "11", "a depth of resnet: 10, 18, 34, 50, 101, 152"),
        ("depth", "ten", "a whole number of at least 1"),
        ("batch", "0", "a whole number of at least 1"),
        ("batch", "510", "a multiple of its 4 devices"),
        ("workers", "-16", "a whole number of at least 1"),
        ("workers", "3", "at least one for each of its 4 devices"),
        ("output_folder", "", "a folder"),
        ("port", "70000", "a whole number of at least 1 and at most 65535"),
        ("arrival_time", "nan", "seconds, from 0 to 1000000000"),
        ("arrival_time", "1e300", "seconds, from 0 to 1000000000"),
        ("arrival_time", "-1", "seconds, from 0 to 1000000000"),
        ("cuda_device", '["0 1"]', "devices of 2 nodes, as node_size says"),
        ("cuda_device", '["0 0" "0 1"]', "every device index of a node once"),
        ("cuda_device", '["0 -1" "0 1"]', "device indices that are whole numbers from 0 on"),
        ("cuda_device", '["0 a" "0 1"]', "device indices that are whole numbers from 0 on"),
        ("cuda_device", '["" "0 1"]', "at least one device index for every node"),
        ("cuda_device", '["0 1" 2]', 'a list with one string of device indices for each node, such as ["0 1" "0 1"]'),
        ("cuda_device", "{'a':[0 1], 'a':[0 1]}", "every node once"),
        ("cuda_device", "{'a'}", "node names with their device indices, such as {'hostA':[0 1]}"),
        ("cuda_device", "__import__('os').abort()", "device indices that are whole numbers from 0 on"),
        ("start_iter", "500", "an iteration before end_iter, which is 500"),
        ("start_epoch", "2", "an epoch not after end_epoch, which is 1"),
        ("node_size", "0", "a whole number of at least 1"),
    ],
)
def test_the_error_about_an_invalid_cell_has_its_position_and_the_expected_value(
    folder: Path, column: str, found: str, expected: str
) -> None:
    workload = read(folder, rows({}, {column: found}, {}))
    assert [job.name for job in workload.jobs] == ["resnet10-1", "resnet10-3"]
    (error,) = workload.errors
    assert str(error) == f"{folder}/jobs.csv, row 3, column {column}: found {found!r}, expected {expected}"


def test_all_errors_of_all_rows_are_reported_together(folder: Path) -> None:
    workload = read(folder, rows({"batch": "0", "depth": "x"}, {}, {"end_iter": "0"}))
    assert [(error.row, error.column) for error in workload.errors] == [(2, "depth"), (2, "batch"), (4, "end_iter")]
    assert len(workload.jobs) == 1


def test_two_jobs_cannot_have_the_same_port_of_a_master(folder: Path) -> None:
    workload = read(folder, rows({"port": "5"}, {"port": "5", "master": "other"}, {"port": "5"}))
    (error,) = workload.errors
    assert (error.row, error.column) == (4, "port")
    assert error.expected == "one that no other job has on d3093; row 2 has it"
    assert len(workload.jobs) == 2


def test_a_malformed_row_does_not_affect_the_others(folder: Path) -> None:
    workload = read(folder, rows({}, {"cuda_device": '["0 1" "0 1"'}, {}) + "\nresnet, 10")
    assert [(error.row, error.column) for error in workload.errors] == [(3, ""), (5, "")]
    assert workload.errors[1].found == "2 cells"
    assert len(workload.jobs) == 2


def test_missing_columns_are_reported_once_for_the_file(folder: Path) -> None:
    workload = read(folder, "arch,depth\nresnet,10\n")
    (error,) = workload.errors
    assert (error.row, workload.jobs) == (None, ())
    assert error.found == f"no column {', '.join(list(COLUMNS)[2:])}"


def test_a_duplicate_column_is_an_error(folder: Path) -> None:
    (error,) = read(folder, SEED.replace("arch,", "arch,batch,", 1)).errors
    assert (error.row, error.column) == (1, "batch")


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_an_error(folder: Path, text: str) -> None:
    (error,) = read(folder, text).errors
    assert error.found == "nothing"


def test_a_file_that_is_not_utf_8_is_an_error(folder: Path) -> None:
    path = folder / "jobs.csv"
    path.write_bytes(b"arch\xff")
    (error,) = read_workload(path).errors
    assert error.expected == "UTF-8"


@given(st.lists(st.text("[]{}\"', 01:a-", max_size=20), min_size=1, max_size=3))
def test_any_text_gives_jobs_or_errors(tmp_path_factory: pytest.TempPathFactory, cells: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    workload = read(folder, rows(*({"cuda_device": cell} for cell in cells)))
    wrong = {error.row for error in workload.errors}
    assert len(workload.jobs) + len(wrong) == len(cells)
    assert all(job.devices.count > 0 for job in workload.jobs)
