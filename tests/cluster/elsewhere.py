"""A pytest plug-in that makes the objects of the native classes' tests on another node of the run.

dragon --nodes 2 -m pytest -p elsewhere tests/native
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from dragon.infrastructure.policy import Policy
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime.connection import Pipe
from dragon.runtime.nodes import run_nodes

_MODULES = {
    "dragon.native.queue": ("Queue",),
    "dragon.native.lock": ("Lock", "RLock"),
    "dragon.native.semaphore": ("Semaphore", "BoundedSemaphore"),
    "dragon.native.event": ("Event",),
    "dragon.native.condition": ("Condition",),
    "dragon.native.barrier": ("Barrier",),
    "dragon.native.value": ("Value",),
    "dragon.native.array": ("Array",),
    "dragon.runtime.connection": ("Pipe",),
}
_PASSED_ON = (AttributeError, IndexError, TypeError, ValueError)


def _make_for_ever(requests: Queue, answers: Queue) -> None:
    while True:
        module, name, args, kwargs = requests.get()
        try:
            answers.put(getattr(importlib.import_module(module), name)(*args, **kwargs))
        except _PASSED_ON as error:
            answers.put(error)
        answers.put("it is yours alone")


class Maker:
    """The process on the other node that makes objects on request."""

    def __init__(self) -> None:
        self.requests, self.answers = Queue(), Queue()
        node = run_nodes()[1]
        policy = Policy(placement=Policy.Placement.HOST_NAME, host_name=node.host_name)
        Process(_make_for_ever, (self.requests, self.answers), policy=policy).start()

    def make(self, module: str, name: str, *args: Any, **kwargs: Any) -> Any:
        self.requests.put((module, name, args, kwargs))
        made, _ = self.answers.get(), self.answers.get()
        if isinstance(made, _PASSED_ON):
            raise made
        return made


class Elsewhere:
    """A substitute for a class or a factory function that makes its instances on the other node."""

    def __init__(self, maker: Maker, module: str, name: str) -> None:
        self._maker, self._module, self._name = maker, module, name
        self._here = getattr(importlib.import_module(module), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._maker.make(self._module, self._name, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._here)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replace the names in the test modules."""
    maker = Maker()
    stand_ins = {}
    for module, names in _MODULES.items():
        for name in names:
            stand_in = Elsewhere(maker, module, name)
            stand_ins[id(stand_in._here)] = stand_in
    assert id(Pipe) in stand_ins
    for module_of_tests in {item.module for item in items if isinstance(item, pytest.Function)}:
        for name, value in list(vars(module_of_tests).items()):
            if id(value) in stand_ins:
                setattr(module_of_tests, name, stand_ins[id(value)])
