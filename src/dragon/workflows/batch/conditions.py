"""How often a task is tried, what it asks for, and what it finds in its environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

from dragon.infrastructure.plain_number import in_units, plain_number
from dragon.infrastructure.variables import parse_size
from dragon.runtime.arguments import checked_seconds
from dragon.workflows.batch.outcome import Failure, Outcome

MOST_LOSSES = 10  # of a worker or its node, for one task; more are taken for its own doing
_MOST_PAUSE_S = 300.0


class RetryPolicy(NamedTuple):
    """When a task is tried again.

    Attributes:
        retries: how often, after an error of its own.
        errors: the exceptions after which it is.
        codes: the exit codes after which it is; all but 0 where `errors` has Exception.
        backoff: seconds before the first retry, doubled for each further one.
    """

    retries: int = 0
    errors: tuple[type[BaseException], ...] = (Exception,)
    codes: frozenset[int] = frozenset()
    backoff: float = 0.0

    @classmethod
    def checked(cls, retries: object, retry_on: object, backoff: float) -> Self:
        """Return the policy that a user named. Raises TypeError and ValueError for wrong ones."""
        count = plain_number(retries)
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"retries must be a whole number, not {retries!r}")
        if count < 0:
            raise ValueError(f"retries must be at least 0, not {count}")
        seconds = checked_seconds("backoff", backoff)
        if seconds is None or not seconds >= 0:
            raise ValueError(f"backoff must be a number of seconds from 0 on, not {backoff!r}")
        reasons = list(retry_on) if isinstance(retry_on, Iterable) and not isinstance(retry_on, type) else [retry_on]
        errors = [one for one in reasons if isinstance(one, type) and issubclass(one, BaseException)]
        codes = frozenset(one for one in reasons if type(one) is int)
        if len(errors) + len(codes) < len(set(reasons)):
            raise TypeError(f"retry_on must be exception classes or exit codes, one or several, not {retry_on!r}")
        return cls(count, tuple(errors), codes, seconds)

    def fault(self, outcome: Outcome, is_code: bool) -> str:
        """Return the error, in a line, after which the task is tried again; "" for an outcome that is final. `is_code`:
        its value is an exit code, or several."""
        if isinstance(outcome, Failure):
            return outcome.brief if isinstance(outcome.error(), self.errors) else ""
        if not is_code:
            return ""
        codes = outcome.get()
        failed = set(codes if isinstance(codes, list) else [codes]) - {0}
        # The other ranks of a job were ended by a signal, which is a negative code.
        return f"exit code {max(failed)}" if failed and (Exception in self.errors or failed & self.codes) else ""

    def pause(self, tries: int) -> float:
        """Return the seconds to wait after this number of tries."""
        return min(_MOST_PAUSE_S, self.backoff * 2.0 ** min(tries - 1, 60))


class Demand(NamedTuple):
    """What a task, or each rank of a job, asks for.

    Attributes:
        cpus: the number of CPUs; 0 if it did not say, which counts as 1.
        gpus: the number of GPUs, or of the parts of them that the run may use.
        memory: bytes.
        node: the host name of the node; empty for any.
    """

    cpus: int = 0
    gpus: int = 0
    memory: int = 0
    node: str = ""

    @classmethod
    def checked(cls, cpus: object, gpus: object, memory: object, node: object) -> Self | None:
        """Return what a user asks for; None for nothing. Raises TypeError and ValueError."""
        if isinstance(memory, str):
            memory = parse_size(memory)
        numbers = []
        for name, value, least in (("cpus", cpus, 1), ("gpus", gpus, 0), ("memory", memory, 0)):
            number = 0 if value is None else plain_number(value)
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value is not None and number < least:
                raise ValueError(f"{name} must be at least {least}, not {number}")
            numbers.append(number)
        if not isinstance(node, str | None):
            raise TypeError(f"on_node must be a host name, not {node!r}")
        found = cls(numbers[0], numbers[1], numbers[2], node or "")
        return found if any(found) else None

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPU{'s' * (self.cpus != 1)}"]
        if self.gpus:
            parts.append(f"{self.gpus} GPU{'s' * (self.gpus != 1)}")
        if self.memory:
            parts.append(in_units(self.memory))
        return ", ".join(parts)


class Share(NamedTuple):
    """What a task, or a rank of a job, has of a node: its CPUs (empty for any), GPUs and memory."""

    host: str
    cpus: tuple[int, ...]
    gpus: tuple[float, ...]
    memory: int


class InEnvironment(partial[Any]):
    """A call that finds environment variables of its own."""

    variables: Mapping[str, str] = {}

    def __call__(self, /, *args: object, **kwargs: object) -> object:
        """Call the function, with the variables set meanwhile."""
        with variables_set(self.variables):
            return super().__call__(*args, **kwargs)


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def checked_variables(env: object) -> dict[str, str]:
    """Return environment variables that a user named. Raises TypeError for other than a mapping of texts."""
    if env is None:
        return {}
    if not isinstance(env, Mapping) or not all(isinstance(text, str) for pair in env.items() for text in pair):
        raise TypeError(f"env must be a mapping of names to texts, not {env!r}")
    return dict(env)
