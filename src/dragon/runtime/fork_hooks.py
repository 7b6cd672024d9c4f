"""Calls functions in a child right after a fork.

One system hook serves all functions. It is registered before a main program is imported: a later hook is taken for one
of the program's, with which the zygote must not be forked.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_calls: list[Callable[[], object]] = []


def in_child(call: Callable[[], object]) -> None:
    """Call a function in every child that is forked from now on, and in their children."""
    _calls.append(call)


def _call_all() -> None:
    for call in _calls:
        call()


os.register_at_fork(after_in_child=_call_all)
