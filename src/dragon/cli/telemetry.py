"""The options of `dragon` for telemetry: what is measured, and where it is sent."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec

from dragon.cli.machine import port
from dragon.infrastructure import variables
from dragon.infrastructure.errors import DragonError


class MissingError(DragonError):
    """Raised if a library that an option needs is not installed."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    group = parser.add_argument_group("telemetry")
    group.add_argument(
        "-T",
        "--telemetry-level",
        type=int,
        choices=range(variables.HIGHEST_TELEMETRY_LEVEL + 1),
        metavar="LEVEL",
        help="what to measure while the program runs: 0 nothing (the default without the options below), 1 the "
        "program's own metrics, 2 nodes, 3 GPUs, 4 processes too, 5 what they wait for (`dragon trace`)",
    )
    group.add_argument(
        "--telemetry-port",
        type=port,
        metavar="PORT",
        help="TCP port of this machine at which metrics are served to Prometheus; 0: any free port",
    )
    group.add_argument(
        "--telemetry",
        metavar="DIR",
        help="write measurements to files in this directory, at level 4 unless another is given; "
        "`dragon dashboard DIR` makes a page of them",
    )
    group.add_argument(
        "--otlp",
        type=_url,
        metavar="URL",
        help="send the metrics to this OpenTelemetry collector, http://HOST:4318 for instance, every ten seconds",
    )
    group.add_argument(
        "--dashboard",
        action="store_true",
        help="serve a page that shows the run, on this machine; its address is printed on stderr. Measures at level 4 "
        "unless -T is given; the port is that of --telemetry-port, if given",
    )


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address like http://HOST:4318")
    return text


def apply(arguments: argparse.Namespace) -> None:
    """Set the run's environment variables from the options. Raises MissingError."""
    told = {
        variables.TELEMETRY_LEVEL: arguments.telemetry_level,
        variables.TELEMETRY_PORT: arguments.telemetry_port,
        variables.TELEMETRY_DIRECTORY: arguments.telemetry,
        variables.OTLP: arguments.otlp,
        variables.DASHBOARD: "1" if arguments.dashboard else None,
    }
    _need("--telemetry", arguments.telemetry, "pyarrow", "telemetry")
    _need("--otlp", arguments.otlp, "opentelemetry.exporter", "otlp")
    os.environ.update({name: str(value) for name, value in told.items() if value is not None})
    directory = variables.telemetry_directory()
    if directory is not None:
        # Absolute, since agents of other nodes have other working directories.
        os.environ[variables.TELEMETRY_DIRECTORY] = str(directory)


def _need(option: str, value: str | None, module: str, extra: str) -> None:
    package = module.partition(".")[0]
    if value is not None and (find_spec(package) is None or find_spec(module) is None):
        raise MissingError(f"{option} needs {module}: pip install 'dragon-runtime[{extra}]'")
