"""Checks of the parameters of a dictionary."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dragon.data.ddict.creation import Options
from dragon.data.ddict.persistence import CheckpointPersister, NULLCheckpointPersister, PosixCheckpointPersister
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy
from dragon.runtime.nodes import run_nodes

__all__ = ["check_name", "check_parameters", "check_timeout"]

_MAX_NAME_BYTES = 180  # bytes; a file name has 255 at most, and also contains manager, checkpoint and set

_NAMES = {int: "a whole number", str: "a string", bool: "True or False"}


def check_parameters(
    options: Options,
    managers_per_node: int | None,
    n_nodes: int | None,
    total_mem: int,
    policy: Policy | list[Policy] | None,
    managers_per_policy: int,
    restart: bool,
    restore_from: int | None,
    persister_class: type[CheckpointPersister],
) -> None:
    """Raise the exceptions that DDict() documents if its parameters are invalid or do not fit together."""
    waits = options.wait_for_keys or options.wait_for_writers
    for name in ("working_set_size", "replicas", "persist_freq", "persist_count"):
        _check_kinds(int, **{name: getattr(options, name)})
    _check_kinds(int, managers_per_policy=managers_per_policy, restore_from=0 if restore_from is None else restore_from)
    check_name(options.name, persister_class is not NULLCheckpointPersister)
    if not isinstance(options.persist_path, Path):
        _check_kinds(str, persist_path=options.persist_path)
    for name in ("wait_for_keys", "wait_for_writers", "read_only", "linearizable"):
        _check_kinds(bool, **{name: getattr(options, name)})
    _check_kinds(bool, restart=restart)
    check_timeout(options.timeout)
    _check_numbers(total_mem, options.working_set_size, waits, options.persist_freq, options.persist_count)
    _check_placement(policy, managers_per_node, n_nodes)
    _check_persister(persister_class, options.persist_freq)
    if not 1 <= options.replicas <= len(run_nodes()):
        raise ValueError(f"replicas must be from 1 to the run's {len(run_nodes())} nodes, not {options.replicas}")
    _check_restoring(options.name, restart, options.read_only, restore_from, policy)
    if options.read_only and (options.working_set_size != 1 or waits or options.persist_count):
        raise AttributeError("read_only needs a working_set_size of 1, no wait_for_... and a persist_count of 0")


def _check_kinds(kind: type, **parameters: object) -> None:
    """Raise TypeError for a parameter that is not of this type."""
    for name, value in parameters.items():
        if not isinstance(plain_number(value), kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} must be {_NAMES[kind]}, not {value!r}")


def check_timeout(timeout: Any) -> None:
    """Raise TypeError or ValueError unless `timeout` is a number of seconds from 0 on, or None."""
    if timeout is None:
        return
    if not isinstance(plain_number(timeout), (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, or None, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")


def _check_numbers(total_mem: Any, working_set_size: int, waits: bool, persist_freq: int, persist_count: int) -> None:
    """Raise AttributeError or ValueError for numbers that are out of range."""
    if not isinstance(plain_number(total_mem), int) or isinstance(total_mem, bool):
        raise AttributeError(f"total_mem must be a whole number of bytes or a size such as '64M', not {total_mem!r}")
    if total_mem < 1:
        raise ValueError(f"total_mem must be at least 1, not {total_mem}")
    if working_set_size < 1:
        raise ValueError(f"working_set_size must be at least 1, not {working_set_size}")
    if waits and working_set_size < 2:
        raise ValueError("wait_for_keys and wait_for_writers need a working_set_size of at least 2")
    if persist_freq < 0 or persist_count < -1:
        raise ValueError(f"persist_freq must be >= 0 and persist_count >= -1, not {persist_freq} and {persist_count}")


def _check_placement(policy: object, managers_per_node: object, n_nodes: object) -> None:
    """Raise TypeError for an invalid policy, AttributeError if the number of managers is given twice or not at all."""
    for one in policy if isinstance(policy, (list, tuple)) else [policy]:
        if one is not None and not isinstance(one, Policy):
            raise TypeError(f"policy must be a Policy or a list of policies, not {policy!r}")
    if isinstance(policy, (list, tuple)):
        if managers_per_node is not None or n_nodes is not None:
            raise AttributeError("with a list of policies managers_per_node and n_nodes must be None")
    elif policy is not None and n_nodes is None:
        raise AttributeError("with one policy n_nodes must be given")


def _check_persister(persister: type[CheckpointPersister], persist_freq: int) -> None:
    """Raise NotSupportedError for a class that is not supported, AttributeError if nothing would be written."""
    if persister is NULLCheckpointPersister and persist_freq:
        raise AttributeError("persist_freq needs a persister_class that writes: PosixCheckpointPersister")
    if persister not in (NULLCheckpointPersister, PosixCheckpointPersister):
        raise NotSupportedError(
            f"{getattr(persister, '__name__', persister)} is not offered; "
            "PosixCheckpointPersister writes to any file system that is mounted"
        )


def check_name(name: str, persists: bool) -> None:
    """Raise TypeError if the name is not a string, ValueError if it cannot be part of the name of persisted files."""
    _check_kinds(str, name=name)
    if persists and ("/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME_BYTES):
        raise ValueError(
            f'name must be a valid file-name prefix (at most {_MAX_NAME_BYTES} bytes, no "/"), not {name!r}'
        )


def _check_restoring(name: str, restart: bool, read_only: bool, restore_from: int | None, policy: object) -> None:
    """Raise AttributeError or RuntimeError if the parameters do not determine what to restore."""
    if restore_from is not None and not name:
        raise AttributeError("restore_from needs the name under which the dictionary was persisted")
    if restart and policy is not None:
        raise AttributeError("restart keeps the placement of the managers: remove the policy")
    if restart and not name:
        raise RuntimeError("There is an exception initializing ddict: restart needs a name")
    if read_only and (not name or restore_from is None):
        raise AttributeError("read_only needs name and restore_from")
