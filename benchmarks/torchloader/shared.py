"""What several training programs on a node cost that read the same data, with one preparation for all of them.

python benchmarks/torchloader/shared.py [--jobs 4] [--rounds 3]

Each round runs one program alone, then all at a time, each with its own preparation and then with `shared_as`, and adds
up the CPU time of all their processes.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np

_SAMPLES, _BATCH = 6400, 32
_BE_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent has ended become this one's


class Decoded:
    """Samples of 150 KB that take 8 ms to decode and augment, as photographs do."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, int]:
        hashlib.pbkdf2_hmac("sha256", b"a photograph", index.to_bytes(4, "little"), 27_000)
        return np.random.default_rng(index).integers(0, 256, (3, 224, 224), dtype=np.uint8), index


def collate(samples: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
    """Collate a batch."""
    return np.stack([image for image, _ in samples]), [index for _, index in samples]


def train(shared_as: str | None, step: float) -> None:
    """Train for an epoch, as one job."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # whose import takes as long as an epoch here
    from torchloader import ElasticDataLoader

    with ElasticDataLoader(
        Decoded(), _BATCH, shuffle=True, num_workers=2, collate_fn=collate, seed=0, shared_as=shared_as
    ) as loader:
        for _ in loader:
            time.sleep(step)
        print(loader.counters.shared)


def cost(jobs: int, shared_as: str | None) -> tuple[float, float, int]:
    """Return the CPU time and duration of running `jobs` jobs at once, and the number of shared batches."""
    before, since = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, __file__, "--job", shared_as or ""]
    programs = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(jobs)]
    shared = sum(int(program.communicate()[0]) for program in programs)
    taken = time.perf_counter() - since
    with suppress(ChildProcessError):  # The CPU time of all descendants counts once they have been waited for.
        while True:
            os.waitpid(-1, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, taken, shared


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", type=float, default=0.0, help="seconds of a training step")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        train(arguments.job or None, arguments.step)
        return
    ctypes.CDLL(None).prctl(_BE_SUBREAPER, 1)
    batches = arguments.jobs * _SAMPLES // _BATCH
    ratios: dict[str, list[float]] = {"each its own": [], "shared": []}
    for number in range(arguments.rounds):
        alone, seconds, _ = cost(1, None)
        print(f"one alone: {alone:.1f} s of CPU time in {seconds:.1f} s")
        for how, name in (("each its own", None), ("shared", f"round {os.getpid()} {number}")):
            cpu, seconds, shared = cost(arguments.jobs, name)
            ratios[how].append(cpu / alone)
            print(f"{arguments.jobs} jobs, {how}: {cpu / alone:.2f} x that in {seconds:.1f} s, ", end="")
            print(f"{shared} of {batches} batches from others", flush=True)
    for how, found in ratios.items():
        print(f"{how}: {statistics.median(found):.2f} times the CPU time of one ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
