"""Whether the parameters of a dictionary go together."""

from __future__ import annotations

import os
from typing import Any

from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy

__all__ = ["check_kinds", "check_name", "check_numbers", "check_placement", "check_restoring", "check_timeout"]

_LONGEST_NAME = 200  # bytes; a file system takes 255, and with it go manager, checkpoint and pid

_NAMES = {int: "a whole number", str: "a string", bool: "True or False"}


def check_kinds(kind: type, **parameters: Any) -> None:
    """Raises TypeError for one that is of another kind."""
    for name, value in parameters.items():
        if not isinstance(plain_number(value), kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} must be {_NAMES[kind]}, not {value!r}")


def check_timeout(timeout: Any) -> None:
    """Raises TypeError or ValueError where it is no time to wait."""
    if timeout is None:
        return
    if not isinstance(plain_number(timeout), (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, or None, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")


def check_numbers(total_mem: Any, working_set_size: int, waits: bool, persist_freq: int, persist_count: int) -> None:
    """Raises what the numbers ask for where they make no sense."""
    if not isinstance(plain_number(total_mem), int) or isinstance(total_mem, bool):
        raise AttributeError(f"total_mem must be a whole number of bytes, not {total_mem!r}")
    if total_mem < 1:
        raise ValueError(f"total_mem must be at least 1, not {total_mem}")
    if working_set_size < 1:
        raise ValueError(f"working_set_size must be at least 1, not {working_set_size}")
    if waits and working_set_size < 2:
        raise ValueError("wait_for_keys and wait_for_writers need a working_set_size of at least 2")
    if persist_freq < 0 or persist_count < -1:
        raise ValueError(f"persist_freq must be >= 0 and persist_count >= -1, not {persist_freq} and {persist_count}")


def check_placement(policy: Any, managers_per_node: Any, n_nodes: Any) -> None:
    """Raises TypeError for what is no policy, AttributeError where two parameters or none say where managers go."""
    for one in policy if isinstance(policy, (list, tuple)) else [policy]:
        if one is not None and not isinstance(one, Policy):
            raise TypeError(f"policy must be a Policy or a list of policies, not {policy!r}")
    if isinstance(policy, (list, tuple)):
        if managers_per_node is not None or n_nodes is not None:
            raise AttributeError("with a list of policies managers_per_node and n_nodes must be None")
    elif policy is not None and n_nodes is None:
        raise AttributeError("with one policy n_nodes must be given")


def check_name(name: str, persists: bool) -> None:
    """Raises TypeError for a name that is no text, ValueError for one that persisted files cannot have in theirs."""
    check_kinds(str, name=name)
    if persists and ("/" in name or "\0" in name or len(os.fsencode(name)) > _LONGEST_NAME):
        raise ValueError(f'name must be a valid file-name prefix (at most {_LONGEST_NAME} bytes, no "/"), not {name!r}')


def check_restoring(name: str, restart: bool, read_only: bool, restore_from: int | None, policy: Any) -> None:
    """Raises AttributeError or RuntimeError where it is not said what to restore."""
    if restore_from is not None and not name:
        raise AttributeError("restore_from needs the name under which the dictionary was persisted")
    if restart and policy is not None:
        raise AttributeError("restart takes the managers as they were; leave the policy out")
    if restart and not name:
        raise RuntimeError("There is an exception initializing ddict: restart needs a name")
    if read_only and (not name or restore_from is None):
        raise AttributeError("read_only needs name and restore_from")
