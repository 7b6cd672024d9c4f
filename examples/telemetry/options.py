"""The command line of telemetry_full.py."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import conv
import mnist_data

DESCRIPTION = "Run SciPy and PyTorch jobs on all nodes of a Dragon run while every node reports its load."


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if conv.number_of_images(options.mem, options.size) < 1:
        parser.error(f"--mem {options.mem} is too little for one image of {options.size} x {options.size} bytes")
    return options


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    add = parser.add_argument
    add_number = partial(add, type=whole_number(1))
    add_number("--scipy_workers", metavar="NUM_SCIPY_WORKERS", default=2, help="number of scipy workers (default: 2)")
    add_number("--mnist_workers", metavar="NUM_MNIST_WORKERS", default=2, help="number of mnist workers (default: 2)")
    add("--bars", action="store_true", help="uses tqdm bars to print telemetry data")
    add("--service", action="store_true", help="reads the runtime's own telemetry instead of starting monitors")
    add("--no-cuda", action="store_true", help="disables CUDA training")
    add_number("--size", metavar="ARRAY_SIZE", default=1024, help="size of the array (default: 1024)")
    add_number(
        "--mem",
        metavar="IMAGE_MEM_SIZE",
        default=1024**3,
        help="overall footprint of image dataset to process, in bytes (default: 1024^3)",
    )
    add_number("--batch-size", metavar="BATCH_SIZE", default=64, help="input batch size for training (default: 64)")
    add_number(
        "--test-batch-size",
        metavar="TEST_BATCH_SIZE",
        default=1000,
        help="input batch size for testing (default: 1000)",
    )
    add_number("--epochs", metavar="NUM_EPOCHS", default=14, help="number of epochs to train (default: 14)")
    add("--gamma", metavar="GAMMA", type=factor, default=0.7, help="learning rate step gamma (default: 0.7)")
    add("--seed", metavar="SEED", type=whole_number(0), default=1, help="random seed (default: 1)")
    add(
        "--data",
        metavar="DIR",
        type=Path,
        default=mnist_data.default_folder(),
        help="folder of the MNIST files, which are downloaded there if it has none (default: %(default)s)",
    )
    return parser


def whole_number(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, not {text!r}")
        if int(text) >= 2**63:
            raise argparse.ArgumentTypeError(f"expected a whole number below 2^63, not {text!r}")
        return int(text)

    return convert


def factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text!r}")
    return value
