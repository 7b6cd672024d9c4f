"""DLIO (PyPI: dlio-benchmark), which emulates an accelerator, with PyTorch's loader and with the elastic one, by turns.

python benchmarks/torchloader/dlio.py --folder FOLDER    prints the utilisation of the accelerator that DLIO tells

That is the time of the emulated steps by that of an epoch, both but for its first step; the second half of the epochs
counts, as "auto" has found its number then. The loader is DLIO's own one of PyTorch's with DLIO's options, or what
elastic() makes of it, with changes.

Its workloads unet3d and resnet50 for an H100 are scaled to one machine by 20 and by 8: bytes, or samples in a batch,
and the seconds of a step. The resnet50 of DLIO reads records of TensorFlow; here a sample is a file of NumPy's. In
resnet50-far each takes 2 ms more, in which its worker waits, as for a storage. In resnet50-fast files are read without
a checksum and the accelerator is eight times as fast, so that much of the work is to send batches.

DLIO 2.0 and what it needs here, besides an MPI library and PyTorch: `pip install --no-deps dlio-benchmark==2.0.0
pydftracer==1.0.2 hydra-core omegaconf antlr4-python3-runtime==4.9.3 h5py pandas python-dateutil pytz six mpi4py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

# DLIO imports it even for workloads of PyTorch, which do not use it.
sys.modules.setdefault("tensorflow", types.ModuleType("tensorflow"))

import dlio_benchmark.main as dlio_main  # noqa: E402
from dlio_benchmark.data_loader.torch_data_loader import TorchDataLoader  # noqa: E402
from dlio_benchmark.reader.npy_reader import NPYReader  # noqa: E402
from dlio_benchmark.reader.npz_reader import NPZReader  # noqa: E402

from torchloader import elastic  # noqa: E402

__all__ = ["Elastic", "NpyReader", "NpzReader"]

_CHANGES = "TORCHLOADER_DLIO_CHANGES"  # an environment variable: changes for elastic(), as JSON
_UNET: dict[str, Any] = {
    "dataset.num_files_train": 168,
    "dataset.record_length": 146600628 // 20,
    "dataset.record_length_stdev": 68341808 // 20,
    "dataset.record_length_resize": 2097152 // 20,
    "train.computation_time": 0.323 / 20,
    "reader.batch_size": 7,
}
_RESNET: dict[str, Any] = {
    "framework": "pytorch",
    "reader.data_loader": "pytorch",
    "dataset.format": "npz",
    "dataset.num_files_train": 2000,
    "dataset.num_samples_per_file": 1,
    "train.computation_time": 0.224 / 8,
    "reader.batch_size": 400 // 8,
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "unet3d": _UNET,
    "resnet50": _RESNET,
    "resnet50-far": {**_RESNET, "reader.preprocess_time": 0.002},
    "resnet50-fast": {**_RESNET, "dataset.format": "npy", "train.computation_time": 0.224 / 64},
}
# Changes for elastic(); None is PyTorch's loader.
LOADERS: dict[str, dict[str, Any] | None] = {
    "PyTorch's": None,
    "elastic": {},
    'elastic, "auto"': {"num_workers": "auto"},
}


class Untold(dict[int, Any]):
    """A dictionary whose repr() does not contain its items."""

    __repr__ = object.__repr__


class NpzReader(NPZReader):  # type: ignore[misc]
    """DLIO's reader without the formatting of the list of all samples for each sample, for a log that is off: with
    2,000 files it takes 2 ms.
    """

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index, epoch)
        self.global_index_map = Untold(self.global_index_map)


class NpyReader(NPYReader):  # type: ignore[misc]
    """The same reader for files of one array."""

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index, epoch)
        self.global_index_map = Untold(self.global_index_map)


class Elastic(TorchDataLoader):  # type: ignore[misc]
    """DLIO's PyTorch loader, made elastic."""

    def read(self) -> None:
        """Make the loader, which all epochs use."""
        super().read()
        self._dataset = elastic(self._dataset, **json.loads(os.environ[_CHANGES]))


def dlio(workload: str, folder: Path, options: dict[str, Any], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run DLIO in a process of its own. Return its report of the run; nothing if it only makes the files."""
    base, output = workload.partition("-")[0], folder / "output"
    kind = WORKLOADS[workload].get("dataset.format", "npz")
    data = folder / f"{base}-{kind}"
    own = {"dataset.data_folder": data, "output.folder": output, "workflow.checkpoint": False}
    own["reader.reader_classname"] = f"dlio.{kind.capitalize()}Reader"
    if "workflow.generate_data" in options and data.exists():
        return {}
    if changes is not None:
        own |= {"reader.data_loader_classname": "dlio.Elastic", "reader.data_loader_sampler": "index"}
    settings = [f"++workload.{name}={value}" for name, value in {**WORKLOADS[workload], **own, **options}.items()]
    command = [sys.executable, __file__, "run", f"workload={base}_h100", f"hydra.run.dir={output}", *settings]
    environment = {**os.environ, _CHANGES: json.dumps(changes)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return {} if "workflow.generate_data" in options else dict(json.loads((output / "summary.json").read_text()))


def compare(folder: Path, workloads: list[str], counts: list[int], epochs: int, turns: int) -> None:
    """Measure all loaders by turns, with equal numbers of workers except for "auto"."""
    for workload in workloads:
        dlio(workload, folder, {"workflow.generate_data": True, "workflow.train": False})
        for workers in counts:
            options = {"reader.read_threads": workers, "train.epochs": epochs}
            given: dict[str, list[float]] = {name: [] for name in LOADERS}
            for _ in range(turns):
                for name, changes in LOADERS.items():
                    told = dlio(workload, folder, options, changes)["metric"]["train_au_percentage"]
                    given[name].append(statistics.mean(told[epochs // 2 :]))
            for name, found in given.items():
                each = ", ".join(f"{one:.1f}" for one in sorted(found))
                print(
                    f"{workload:>13} {workers} workers {name:>26}: {statistics.median(found):5.1f} %  ({each})",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        del sys.argv[1]
        dlio_main.main()
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for data, 1.7 GB, and what DLIO writes")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    compare(asked.folder.absolute(), asked.workloads, asked.workers, asked.epochs, asked.turns)
