"""Settings from the environment, read once, in one place.

| variable | meaning |
|---|---|
| DRAGON_ARENA_SIZE | most shared memory of a node, in bytes or with K, M, G, T (default: half of the memory) |
| DRAGON_LOG_LEVEL | DEBUG, INFO, WARNING (default), ERROR or CRITICAL, of the runtime's own log on stderr |
| DRAGON_STRICT | 1: an affinity that the node cannot meet is an error, not a warning |
| DRAGON_GRACE | seconds between SIGTERM and SIGKILL at the end of a run (default 3; 25 in Slurm and Kubernetes) |
| DRAGON_PLAN | a file to which every placement of a process adds a line (JSON) |
| DRAGON_POLICY_CONTEXT_ENV | the policy of the block that a process was started in; set by the runtime |
| DRAGON_TELEMETRY_LEVEL | what is measured, 1 to 5 (default 0: nothing; docs/telemetry.md) |
| DRAGON_TELEMETRY_DIRECTORY | where what is measured is written to files (default: nowhere) |
| DRAGON_TELEMETRY_PERIOD | seconds between measurements (default 1) |
| DRAGON_TELEMETRY_TOKEN | what Prometheus must send as bearer token (default: it runs as you, or as root) |
| DRAGON_TELEMETRY_PORT | the port at which Prometheus gets the metrics of the run, on this machine (default: none) |
| DRAGON_OTLP | the URL of the OpenTelemetry collector to which the metrics of the run are sent |
| DRAGON_DASHBOARD | 1: the run serves its dashboard, on this machine |
| DRAGON_PATCH_MP, DRAGON_PATCH_TORCH | 1: `import dragon` makes "dragon" the start method, torch's too |
| DRAGON_ARGUMENT_DATA | the name of a queue with the bytes that a process was started with; set by the runtime |
| DRAGON_RUN | folder of the run that a process belongs to; set by the runtime |
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see dragon/__init__.py
if TYPE_CHECKING:
    from pathlib import Path

ARENA_SIZE = "DRAGON_ARENA_SIZE"
ARGUMENT_DATA = "DRAGON_ARGUMENT_DATA"
LOG_LEVEL = "DRAGON_LOG_LEVEL"
STRICT = "DRAGON_STRICT"
GRACE = "DRAGON_GRACE"
PLAN = "DRAGON_PLAN"
POLICY = "DRAGON_POLICY_CONTEXT_ENV"
RUN = "DRAGON_RUN"
PROCESS = "DRAGON_PROCESS"
TELEMETRY_DIRECTORY = "DRAGON_TELEMETRY_DIRECTORY"
TELEMETRY_LEVEL = "DRAGON_TELEMETRY_LEVEL"
TELEMETRY_PERIOD = "DRAGON_TELEMETRY_PERIOD"
TELEMETRY_PORT = "DRAGON_TELEMETRY_PORT"
TELEMETRY_TOKEN = "DRAGON_TELEMETRY_TOKEN"
DASHBOARD = "DRAGON_DASHBOARD"
OTLP = "DRAGON_OTLP"

HIGHEST_TELEMETRY_LEVEL = 5
TRACING_LEVEL = 5  # from which tasks, waits and messages are recorded
SHORTEST_PERIOD = 0.05  # seconds

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Return the bytes of a size with an optional K, M, G or T (and an optional B or iB). Raises ValueError."""
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in _UNITS and number[-1:] else ""
    try:
        size = int(float(number.removesuffix(unit)) * _UNITS[unit])
    except ValueError:
        raise ValueError(f"{text!r} is not a size; write 500M or 8G") from None
    if size <= 0:
        raise ValueError(f"{text!r} is not a positive size")
    return size


def memory_limit() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its control groups' if that is less."""
    from dragon import control_groups  # imported late, as below: the start of a run needs neither module

    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(limit, control_groups.memory_limit()))


def arena_limit() -> int:
    """Return the bytes of shared memory that a node's arena may take. Raises ValueError."""
    text = os.environ.get(ARENA_SIZE)
    return parse_size(text) if text else memory_limit() // 2


def strict() -> bool:
    """Return whether an affinity that cannot be met is an error."""
    return os.environ.get(STRICT, "") not in ("", "0")


def grace() -> float:
    """Return the seconds that processes have to end by themselves at the end of a run."""
    unsaid = 25.0 if {"SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"} & os.environ.keys() else 3.0
    return _seconds(GRACE, unsaid, 0.0, "is not a number of seconds")


def _seconds(name: str, unsaid: float, least: float, otherwise: str) -> float:
    text = os.environ.get(name)
    try:
        seconds = float(text) if text else unsaid
    except ValueError:
        seconds = -1.0
    if not least <= seconds < float("inf"):
        raise ValueError(f"{name}={text} {otherwise}")
    return seconds


def telemetry_level() -> int:
    """Return the telemetry level."""
    everything = dashboard() or telemetry_directory() is not None
    unsaid = "4" if everything else "2" if os.environ.get(TELEMETRY_PORT) or otlp() else "0"
    text = os.environ.get(TELEMETRY_LEVEL) or unsaid
    if not text.isdecimal() or int(text) > HIGHEST_TELEMETRY_LEVEL:
        raise ValueError(f"{TELEMETRY_LEVEL}={text}: the levels are 0 (off) to {HIGHEST_TELEMETRY_LEVEL}")
    return int(text)


def telemetry_directory() -> Path | None:
    """Return the directory of telemetry files; None if none are written."""
    from pathlib import Path

    text = os.environ.get(TELEMETRY_DIRECTORY)
    return Path(text).absolute() if text else None


def telemetry_period() -> float:
    """Return the seconds between measurements. Raises ValueError."""
    otherwise = f"is not a number of seconds from {SHORTEST_PERIOD} on"
    return _seconds(TELEMETRY_PERIOD, 1.0, SHORTEST_PERIOD, otherwise)


def otlp() -> str:
    """Return the URL to which metrics are sent; empty for none."""
    return os.environ.get(OTLP, "")


def dashboard() -> bool:
    """Return whether the run serves its dashboard."""
    return os.environ.get(DASHBOARD, "") not in ("", "0")


def telemetry_port() -> int:
    """Return the TCP port of the metrics and the dashboard, 0 for any. Raises ValueError."""
    text = os.environ.get(TELEMETRY_PORT) or "0"
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{TELEMETRY_PORT}={text} is not a TCP port")
    return int(text)
