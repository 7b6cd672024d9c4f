"""The parts of examples/telemetry that need no runtime."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import queue
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

for requirement in ("numpy", "pynvml", "scipy", "sklearn", "torch", "tqdm"):
    pytest.importorskip(requirement, reason="examples/telemetry/requirements.txt is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "telemetry"))
conv, mnist, mnist_data, options, telem = map(
    importlib.import_module, ("conv", "mnist", "mnist_data", "options", "telem")
)

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = mnist_data.CHECKSUMS


def idx(*shape: int, data: bytes | None = None) -> bytes:
    """Return the content of an IDX file of that shape, filled with 0, 1, 2 ... where no data is given."""
    size = 1
    for length in shape:
        size *= length
    body = bytes(value % 256 for value in range(size)) if data is None else data
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + body


def write_mnist(folder: Path, train: int = 3, test: int = 2) -> None:
    for name, content in (
        (TRAIN_IMAGES, idx(train, 28, 28)),
        (TRAIN_LABELS, idx(train)),
        (TEST_IMAGES, idx(test, 28, 28)),
        (TEST_LABELS, idx(test)),
    ):
        (folder / name).write_bytes(gzip.compress(content))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mnist_data, "MIRRORS", ((tmp_path / "nowhere").as_uri() + "/",))


@pytest.mark.parametrize("wrap", [bytes, gzip.compress], ids=["plain", "gz"])
def test_idx_files_are_read_compressed_or_not(tmp_path: Path, wrap: Any) -> None:
    path = tmp_path / "images"
    path.write_bytes(wrap(idx(2, 3, 4)))
    images = mnist_data.read_idx(path, 3)
    assert images.shape == (2, 3, 4)
    assert images.ravel().tolist() == list(range(24))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (idx(2, 3, 4)[:-1], "announces 24 bytes of data and has 23"),
        (idx(2, 3, 4) + b"x", "announces 24 bytes of data and has 25"),
        (idx(2, 3, 4)[:10], "ends within its header"),
        (idx(2), "begins with 00000803, this one with 00000801"),
        (b"", "begins with 00000803"),
        (gzip.compress(idx(2, 3, 4))[:-9], "cannot be read"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
    ],
    ids=["truncated", "too long", "header", "wrong magic", "empty", "truncated gz", "damaged gz"],
)
def test_the_error_for_a_damaged_idx_file_names_it(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(mnist_data.DataError, match=reason) as caught:
        mnist_data.read_idx(path, 3)
    assert str(path) in str(caught.value)


def test_mnist_is_read_from_the_folder(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    plain = tmp_path / TEST_LABELS.removesuffix(".gz")
    plain.write_bytes(gzip.decompress((tmp_path / TEST_LABELS).read_bytes()))
    (tmp_path / TEST_LABELS).unlink()
    digits = mnist_data.load(tmp_path)
    assert digits.train_images.shape == (3, 28, 28)
    assert digits.train_labels.tolist() == [0, 1, 2]
    assert digits.test_labels.tolist() == [0, 1]


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / TEST_LABELS).write_bytes(idx(1))
    with pytest.raises(mnist_data.DataError, match="1 labels for the 2 images"):
        mnist_data.load(tmp_path)


def test_images_of_a_wrong_size_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / TRAIN_IMAGES).write_bytes(idx(3, 8, 8))
    with pytest.raises(mnist_data.DataError, match="images of 8 x 8"):
        mnist_data.load(tmp_path)


def test_missing_files_are_downloaded_from_the_first_mirror_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, good, target = (tmp_path / name for name in ("damaged", "good", "target"))
    for mirror in (damaged, good):
        mirror.mkdir()
        write_mnist(mirror)
    checksums = {name: hashlib.sha256((good / name).read_bytes()).hexdigest() for name in mnist_data.CHECKSUMS}
    (damaged / TRAIN_LABELS).write_bytes(b"something else")
    monkeypatch.setattr(mnist_data, "CHECKSUMS", checksums)
    mirrors = (tmp_path / "nowhere", damaged, good)
    monkeypatch.setattr(mnist_data, "MIRRORS", tuple(mirror.as_uri() + "/" for mirror in mirrors))
    assert mnist_data.load(target).train_labels.tolist() == [0, 1, 2]
    assert sorted(path.name for path in target.iterdir()) == sorted(checksums)


@pytest.mark.usefixtures("no_network")
def test_the_digits_of_scikit_learn_are_used_without_files_and_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = mnist_data.load(tmp_path)
    (line,) = capsys.readouterr().out.splitlines()
    assert str(tmp_path) in line
    assert "scikit-learn" in line
    assert not list(tmp_path.iterdir())
    assert digits.train_images.shape == (1437, 28, 28)
    assert digits.test_images.shape == (360, 28, 28)
    assert digits.train_images.dtype == "uint8"
    assert digits.train_images.max() == 255
    assert set(digits.test_labels.tolist()) == set(range(10))


def test_the_default_folder_is_in_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = mnist_data.default_folder()
    assert folder.name == "data"
    assert tmp_path in folder.parents


def test_every_worker_has_its_own_learning_rate() -> None:
    assert mnist.learning_rates(3) == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(("cpus", "workers", "threads"), [(2, 4, 1), (2, 2, 1), (16, 4, 4), (64, 5, 12)])
def test_workers_share_the_cpus(cpus: int, workers: int, threads: int) -> None:
    assert mnist.threads_per_worker(cpus, workers) == threads


def test_devices_are_assigned_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist.torch.cuda, "is_available", lambda: True)
    devices: queue.Queue[str] = queue.Queue()
    for name in mnist.device_names(2):
        devices.put(name)
    assert [str(mnist.take_device(devices)) for _ in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


def test_without_gpu_the_device_is_the_cpu() -> None:
    devices: queue.Queue[str] = queue.Queue()
    devices.put(*mnist.device_names(0))
    assert str(mnist.take_device(devices)) == "cpu"


def test_a_short_training_reports_its_progress(tmp_path: Path) -> None:
    write_mnist(tmp_path, train=5, test=3)
    labels = idx(5, data=bytes((1, 2, 3, 4, 5)))
    (tmp_path / TRAIN_LABELS).write_bytes(labels)
    training = mnist.Training(batch_size=2, test_batch_size=2, epochs=2, gamma=0.7, seed=1, workers_per_node=1)
    messages: queue.Queue[Any] = queue.Queue()
    trainer = mnist.Trainer(mnist.torch.device("cpu"), mnist_data.load(tmp_path), training, messages)
    result = trainer.train(0.5)
    assert list(messages.queue) == [telem.Progress("mnist lr 0.5", 6)] * 6
    assert 0 <= result.accuracy <= 100
    assert result == trainer.train(0.5)


def test_the_final_line_has_the_loss_and_the_accuracy() -> None:
    line = mnist.Result(0.5, 0.02791020164489746, 99.1).line()
    assert line == "Final test for learning rate 0.5: loss: 0.02791020164489746 accuracy: 99.1"


@pytest.mark.parametrize(
    ("memory", "size", "count"), [(1024**3, 1024, 1024), (67108864, 1024, 64), (10, 2, 2), (3, 2, 0)]
)
def test_the_number_of_images_follows_from_the_memory(memory: int, size: int, count: int) -> None:
    assert conv.number_of_images(memory, size) == count


def test_images_are_the_same_on_every_node() -> None:
    images = conv.Images(count=3, size=8, seed=1)
    assert images.image(1).shape == (8, 8)
    assert images.image(1).dtype == "float64"
    assert (images.image(1) == images.image(1)).all()
    assert (images.image(1) != images.image(2)).any()
    assert images.kernel().sum() == pytest.approx(1)


def test_a_reading_is_printed_as_a_line() -> None:
    line = telem.Reading("pinoak0033", 0.17, {0: 0}).line()
    assert line == "nodename: pinoak0033 cpu load average 1 minute: 0.17 device # 0 utilization: 0.00%"
    assert telem.Reading("pinoak0034", 29.7, {}).line() == "nodename: pinoak0034 cpu load average 1 minute: 29.7"


def test_the_line_display_omits_progress(capsys: pytest.CaptureFixture[str]) -> None:
    display = telem.LineDisplay()
    for message in ("hello", telem.Progress("job", 2), telem.Reading("n", 1.0, {0: 5, 1: 10})):
        display.show(message)
    display.close()
    assert capsys.readouterr().out.splitlines() == [
        "hello",
        "nodename: n cpu load average 1 minute: 1.0 device # 0 utilization: 5.00% device # 1 utilization: 10.00%",
    ]


def test_the_bar_display_shows_gauges_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    display = telem.BarDisplay()
    for message in ("hello", telem.Reading("n", 22.07, {0: 9}), telem.Progress("job", 1)):
        display.show(message)
    display.close()
    out = capsys.readouterr().out
    assert "hello\n" in out
    assert "n cpu load avg.:  22%|" in out
    assert "| 22.07/100 [" in out
    assert "n device 0 util:   9%|" in out
    assert "job: 100%|" in out


class FakeDriver:
    """A driver of two GPUs, of which the first one is partitioned and does not report its utilization."""

    class NVMLError(Exception):
        pass

    def __init__(self, present: bool) -> None:
        self.present = present

    def nvmlInit(self) -> None:
        if not self.present:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu {index}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        if handle == "gpu 0":
            raise self.NVMLError
        return SimpleNamespace(gpu=42)


def test_the_utilization_of_gpus_is_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telem, "pynvml", FakeDriver(present=True))
    devices = telem.find_devices()
    assert telem.read_node("n", devices).devices == {1: 42}


def test_no_gpus_are_found_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telem, "pynvml", FakeDriver(present=False))
    assert telem.find_devices() == {}


def test_options_have_their_default_values() -> None:
    defaults = vars(options.parse([]))
    assert defaults.pop("data") == mnist_data.default_folder()
    assert defaults == {
        "scipy_workers": 2,
        "mnist_workers": 2,
        "bars": False,
        "service": False,
        "no_cuda": False,
        "size": 1024,
        "mem": 1024**3,
        "batch_size": 64,
        "test_batch_size": 1000,
        "epochs": 14,
        "gamma": 0.7,
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--scipy_workers", "0"], "--scipy_workers: expected a whole number of at least 1, not '0'"),
        (["--size", "-3"], "--size: expected a whole number of at least 1, not '-3'"),
        (["--seed", "-1"], "--seed: expected a whole number of at least 0, not '-1'"),
        (["--seed", str(2**63)], f"--seed: expected a whole number below 2^63, not '{2**63}'"),
        (["--gamma", "nan"], "--gamma: expected a number above 0, not 'nan'"),
        (["--mem", "100"], "--mem 100 is too little for one image of 1024 x 1024 bytes"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.parse(arguments)
    assert reason in capsys.readouterr().err
