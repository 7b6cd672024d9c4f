"""Sets up Python's logging for programs that use these functions of dragonhpc.

There is no service that collects logs: a program's log goes to its stderr, which the front end shows, or to its own
file. The arguments that name such a service are not used.
"""

from __future__ import annotations

import enum
import logging
import socket
import sys
from pathlib import Path

__all__ = ["DragonLoggingServices", "setup_BE_logging", "setup_dragon_logging", "setup_logging"]

_FORMAT = "%(asctime)s %(levelname)-8s %(name)s %(process)d: %(message)s"


class DragonLoggingServices(enum.StrEnum):
    """The names that dragonhpc gives the parts of a program that log."""

    LA_FE, LA_BE, GS, TA, ON, OOB, LS = "LA_FE", "LA_BE", "GS", "TA", "ON", "OOB", "LS"
    DD, TEST, PERF, PG, TELEM, BATCH, AI_AGENT = "DD", "TEST", "PERF", "PG", "TELEM", "BATCH", "AI_AGENT"


def setup_logging(
    *,
    basename: str | None = None,
    basedir: str | None = None,
    level: int = logging.INFO,
    force: bool = False,
    add_console: bool = False,
) -> None:
    """Log to the file `{basename}_{host}.log` in `basedir`, and with `add_console` or without `basename` to stderr."""
    logging.basicConfig(format=_FORMAT, handlers=[], force=force)
    logging.getLogger().setLevel(level)
    if basename is not None:
        _add(logging.FileHandler(Path(basedir or ".") / f"{basename}_{socket.gethostname()}.log"))
    if add_console or not logging.getLogger().handlers:
        _add(logging.StreamHandler(sys.stderr))


def _add(handler: logging.Handler) -> None:
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.getLogger().addHandler(handler)


def setup_BE_logging(
    service: DragonLoggingServices | str,
    logger_sdesc: object = None,
    mpool: object = None,
    hostname: str | None = None,
    ip_address: str | None = None,
    port: str | None = None,
    fname: str | None = None,
    load_sdesc_from_environ: bool = True,
) -> tuple[int, str]:
    """Log to stderr, and to the file `fname` if it is given. Return the level of the service's logger, and the file."""
    if not logging.getLogger().handlers:
        _add(logging.StreamHandler(sys.stderr))
    if fname:
        _add(logging.FileHandler(fname))
    return logging.getLogger(str(service)).getEffectiveLevel(), fname or ""


def setup_dragon_logging(node_index: int) -> None:
    """Log to stderr."""
    setup_logging()
