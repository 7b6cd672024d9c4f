"""Programs with a Session that are paused, resumed and resized: they have the same weights as an undisturbed one."""

from __future__ import annotations

import csv
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tiny_training import BATCH, EPOCHS, SHUFFLED, STEPS, Master, equal, place_of_a_rank, rank, train  # noqa: E402

from conftest import Site  # noqa: E402
from dragon.native.process import Process  # noqa: E402
from dragon.native.queue import Queue  # noqa: E402
from full_disk import at_most  # noqa: E402
from torchloader.training import session as session_module  # noqa: E402
from torchloader.training.protocol import (  # noqa: E402
    Cancel,
    Failed,
    Leaves,
    Pause,
    Progress,
    Resize,
    Resized,
    Started,
    decode_report,
)
from torchloader.training.session import Left, Session  # noqa: E402

ALL = EPOCHS * STEPS


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, as the models are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Master]:
    """An application master whose application trains in this process."""
    master = Master()
    for name, value in master.environment(tmp_path, TORCHLOADER_WORKERS=0).items():
        monkeypatch.setenv(name, value)
    yield master
    master.destroy()


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    torch.set_num_threads(1)
    weights, session = train()
    assert session.iteration == ALL
    return weights


def obeyed(master: Master) -> None:
    """Wait until the session has taken all orders."""
    deadline = time.monotonic() + 10
    while master.orders.size():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.005)


def train_with_pauses(master: Master, pauses: list[int], workers: list[int]) -> dict[str, Any]:
    """Train with pauses; the number of loading workers differs between the parts and changes during them."""
    for part, at in enumerate([*pauses, ALL + 1]):
        os.environ["TORCHLOADER_WORKERS"] = str(workers[part % len(workers)])

        def step(session: Session, loader: Any, part: int = part, at: int = at) -> None:
            if session.iteration % 5 == 4:
                master.order(Resize(workers[(part + session.iteration) % len(workers)]))
            if session.iteration == at:
                master.order(Pause())
                obeyed(master)

        if part == len(pauses):
            return train(step)[0]
        with pytest.raises(Left) as left:
            train(step)
        assert left.value.report.how == "paused"
    raise AssertionError("there was no last part")


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pauses=st.lists(st.integers(0, ALL - 1), max_size=3, unique=True).map(sorted),
    workers=st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
def test_a_run_with_pauses_has_the_weights_of_an_undisturbed_one(
    undisturbed: dict[str, Any],
    master: Master,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[int],
    workers: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("paused")
    monkeypatch.setenv("TORCHLOADER_FOLDER", str(folder))
    assert equal(undisturbed, train_with_pauses(master, pauses, workers))
    with (folder / "trace-tiny-iterations-0.csv").open() as file:
        assert [int(row["iteration"]) for row in csv.DictReader(file)] == list(range(1, ALL + 1))


def test_a_rank_reports_its_start_its_progress_and_its_end(master: Master) -> None:
    train(latency=0.0)
    started, *progress, finished = master.told()
    assert started == Started(rank=0, iteration=0, workers=0)
    assert finished == Leaves(rank=0, iteration=ALL, how="finished")
    reports = [report for report in progress if isinstance(report, Progress)]
    assert len(reports) == len(progress) > 0
    assert sum(report.samples for report in reports) == ALL * BATCH
    assert reports[-1].iteration == ALL
    assert reports[-1].loss is not None
    assert all(report.waiting >= 0 and report.computing > 0 for report in reports)
    assert all(report.service is not None and report.service > 0 for report in reports)


def test_a_pause_is_reported_when_the_checkpoint_exists(master: Master, tmp_path: Path) -> None:
    master.order(Pause())
    with pytest.raises(Left) as left:
        train()
    assert left.value.code == 0
    paused = list(master.told())[-1]
    assert isinstance(paused, Leaves)
    (checkpoint,) = (tmp_path / "checkpoints-tiny").iterdir()
    assert checkpoint.name.startswith(f"checkpoint-{paused.iteration:012d}-")


def test_a_resumed_rank_starts_where_it_paused(master: Master) -> None:
    master.order(Pause())
    with pytest.raises(Left) as left:
        train()
    train()
    starts = [report for report in master.told() if isinstance(report, Started)]
    assert [start.iteration for start in starts] == [0, left.value.report.iteration]


def test_a_cancelled_rank_leaves_without_a_checkpoint(master: Master, tmp_path: Path) -> None:
    master.order(Cancel())
    with pytest.raises(Left):
        train()
    assert list(master.told())[-1].how == "cancelled"
    assert not (tmp_path / "checkpoints-tiny").exists()


def test_a_resize_is_reported_and_traced_when_the_workers_have_started(master: Master, tmp_path: Path) -> None:
    resized: list[Resized] = []

    def step(session: Session, loader: Any) -> None:
        if session.iteration == 3:
            master.order(Resize(2, "gain"))
        if session.iteration == 5:
            deadline = time.monotonic() + 20
            while not resized and time.monotonic() < deadline:
                time.sleep(0.01)
                next(iter(loader))  # workers begin when somebody wants batches
                resized.extend(report for report in master.told() if isinstance(report, Resized))

    train(step)
    assert [report.workers for report in resized] == [2]
    with (tmp_path / "trace-tiny-workers-0.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["workers"], row["reason"]) for row in rows] == [("2", "gain")]


def test_orders_sent_before_the_start_of_the_rank_are_followed(master: Master) -> None:
    master.order(Resize(0, "at once"))
    master.order(Pause())
    with pytest.raises(Left):
        train()
    told = list(master.told())
    assert [report.workers for report in told if isinstance(report, Resized)] == [0]
    assert told[-1].how == "paused"


def test_a_program_that_raises_reports_the_error(master: Master) -> None:
    def step(session: Session, loader: Any) -> None:
        raise RuntimeError("the loss is not a number")

    with pytest.raises(RuntimeError):
        train(step)
    failed = list(master.told())[-1]
    assert isinstance(failed, Failed)
    assert "RuntimeError: the loss is not a number" in failed.text


def test_an_application_continues_without_its_master(
    undisturbed: dict[str, Any], master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    def step(session: Session, loader: Any) -> None:
        if session.iteration == 3:
            master.destroy()

    with caplog.at_level(logging.WARNING):
        assert equal(undisturbed, train(step)[0])
    assert "training continues without" in caplog.text


def test_an_invalid_order_is_logged_and_ignored(
    undisturbed: dict[str, Any], master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    for message in (b"{", b'{"type": "Explode"}', b'{"type": "Resize", "workers": -1}', 5):
        master.orders.put(message)

    def step(session: Session, loader: Any) -> None:
        obeyed(master)

    with caplog.at_level(logging.WARNING):
        assert equal(undisturbed, train(step)[0])
    assert caplog.text.count("not an order of the application master") == 4


def test_training_continues_from_the_last_checkpoint_after_a_crash(
    undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def step(session: Session, loader: Any) -> None:
        if session.iteration == 20:
            raise RuntimeError("a power cut")

    with pytest.raises(RuntimeError):
        train(step, folder=tmp_path, save_every=0)
    weights, _ = train(folder=tmp_path)
    assert equal(undisturbed, weights)


def test_training_continues_if_a_regular_checkpoint_cannot_be_saved(
    undisturbed: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), at_most(5000):
        weights, _ = train(folder=tmp_path, save_every=0)
    assert equal(undisturbed, weights)
    assert "training continues without this checkpoint" in caplog.text


def test_a_pause_waits_until_its_checkpoint_can_be_saved(
    undisturbed: dict[str, Any], master: Master, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_module, "_PAUSE_RETRY_S", 0.0)
    master.order(Pause())
    full_disk = ExitStack()
    full_disk.enter_context(at_most(5000))

    def step(session: Session, loader: Any) -> None:
        if session.iteration == 20:
            full_disk.close()

    with caplog.at_level(logging.WARNING), full_disk, pytest.raises(Left) as left:
        train(step)
    assert left.value.report.iteration >= 20
    assert "training continues without this checkpoint" in caplog.text
    assert equal(undisturbed, train()[0])


def test_training_continues_if_its_traces_cannot_be_written(
    undisturbed: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), at_most(500):
        weights, _ = train(folder=tmp_path)
    assert equal(undisturbed, weights)
    (told,) = [record.getMessage() for record in caplog.records if "traces" in record.getMessage()]
    assert told.startswith(f"training continues without traces: {tmp_path}")
    assert train(folder=tmp_path)  # a torn row is no hindrance later


def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    with Session.join(folder=tmp_path, device="cpu") as session:
        session.restore(torch.nn.Linear(2, 2))
        session.save()
    with pytest.raises(ValueError, match="has no loader, optimizer, scheduler"):
        train(folder=tmp_path)


def test_the_error_about_an_invalid_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE must be a whole number, not 'two'"):
        Session.join()


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


@contextmanager
def two_ranks(target: Any, *args: Any, masters: Sequence[dict[str, str]] = ({}, {})) -> Iterator[list[Process]]:
    """Start two ranks, and end those that the block leaves."""
    processes = []
    for place, master in enumerate(masters):
        told = {"RANK": place, "WORLD_SIZE": 2, "LOCAL_RANK": place, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": 1}
        environment = {name: str(value) for name, value in told.items()} | master
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        processes.append(Process(target, args, env=environment))
        processes[-1].start()
    try:
        yield processes
    finally:
        for process in processes:
            if process.is_alive:
                process.kill()
                process.join()


def both_end(processes: list[Process], results: Queue) -> list[Any]:
    """Return what both ranks have put into the queue, once they have ended."""
    told = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=30)
    assert [process.returncode for process in processes] == [0, 0]
    results.destroy()
    return told


def test_two_ranks_pause_together_and_continue_with_the_same_weights(tmp_path: Path) -> None:
    masters, results = (Master(), Master()), Queue(0)
    folders = str(tmp_path / "undisturbed"), str(tmp_path / "paused")
    ports = free_port(), free_port(), free_port()
    environments = [master.environment(tmp_path) for master in masters]
    with two_ranks(rank, folders, ports, results, masters=environments) as processes:
        # The order comes to the ranks at different times.
        for master in masters:
            while not isinstance(decode_report(master.reports.get(timeout=60)), Leaves):
                pass
            assert isinstance(decode_report(master.reports.get(timeout=60)), Started)
        for master in masters:
            master.order(Pause())
            time.sleep(0.02)
        told = both_end(processes, results)
    left = [decode_report(each["report"]) for each in told]
    paused = [report for report in left if isinstance(report, Leaves) and report.how == "paused"]
    assert sorted(report.rank for report in paused) == [0, 1]
    assert len({report.iteration for report in paused}) == 1
    assert [each["equal"] for each in told] == [True, True]
    assert told[0]["weights"] == told[1]["weights"]
    for master in masters:
        master.destroy()


def test_each_rank_continues_from_its_position_and_another_number_is_refused(tmp_path: Path) -> None:
    results = Queue(0)
    with two_ranks(place_of_a_rank, str(tmp_path), [free_port() for _ in range(2)], results) as processes:
        both = both_end(processes, results)
    assert sorted(number for each in both for number in each) == list(range(48))
    with Session.join(tmp_path, device="cpu") as session:
        loader = session.loader(SHUFFLED, 2, streams=2, collate_fn=list)
        with pytest.raises(ValueError, match=r"each of 2 ranks has its own place in the loader, .* there are 1 now"):
            session.restore(torch.nn.Linear(1, 1), loader=loader)


PLAIN = """
import torch
from torchloader.training.session import Session

dataset = torch.utils.data.TensorDataset(torch.randn(32, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session.join() as session:
    loader = session.loader(dataset, batch_size=8)
    print(session.restore(model, optimizer, loader=loader))
    while session.epoch < 2:
        for (points,) in session.steps(loader):
            loss = model(points).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(session.iteration)
"""


def test_the_same_program_runs_without_a_scheduler(site: Site) -> None:
    done = site.python(PLAIN)
    assert (done.stdout, done.stderr) == ("0\n8\n", "")
    assert [path.name for path in site.folder.iterdir() if path.name != "r"] == ["program.py"]
