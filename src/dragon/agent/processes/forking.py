"""Starts Python processes from the zygote: as forks, or as new interpreters if a fork would not be safe."""

from __future__ import annotations

import _random
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dragon import _core
from dragon.agent.processes.fork_safety import unsafe_to_fork
from dragon.infrastructure import cpython
from dragon.infrastructure.messages import Spawn, decode_surroundings
from dragon.infrastructure.system_text import restored
from dragon.runtime import child
from dragon.runtime.interpreter import is_fit
from dragon.runtime.spawning import in_memory
from dragon.runtime.surroundings import take_over

__all__ = ["Forker"]

_MOST_DRAWN = 1000  # times 624 numbers that a main program may draw from NumPy at import, without being taken as seeded

_RANDOM = cpython.random_generator()
# random.seed(), which `random` calls after a fork, without the Python frames, whose pages would be copied.
_reseed = _random.Random.seed.__get__(_RANDOM)


class Forker:
    """Starts the Python processes that are requested from the server."""

    def __init__(self, server: _core.ForkServer, environment: Callable[[Spawn], dict[str, str]]) -> None:
        self._server = server
        self._environment = environment
        self._main: tuple[str, str] | None = None
        self._surroundings = b""
        self._safe = True
        self._told = False
        self._hooks = _ForkHooks()
        self._reseed_numpy: Callable[[], Any] | None = None

    def start(self, request: Spawn) -> int:
        """Start the process of a request. Returns its process id. Raises OSError.

        If a plain fork was sufficient, the server forks for similar requests by itself.
        """
        if not self._is_fit(request):
            return self._start_fresh(request)
        if request.main is not None and self._main is None:
            self._load_main(request)
            if not self._is_fit(request, loaded=True):
                self._surroundings = b""  # matches no request for a fork
                return self._start_fresh(request)
        if not self._safe or request.main != self._main:
            return self._start_fresh(request)
        if request.surroundings != self._surroundings:
            take_over(request.surroundings)
            self._surroundings = request.surroundings
        pid = os.fork() if self._hooks.foreign else _core.plain_fork()
        if pid == 0:
            self.become()
        if not self._hooks.foreign:
            self._server.fork_alike()
        return pid

    def become(self) -> NoReturn:
        """Become the process of the server's request, in a child of the zygote."""
        # Nothing may return into the zygote's loop from here.
        try:
            task = self._server.enter_child()
            cpython.renew_native_id()
            if not self._hooks.foreign:
                _reseed()
            if self._reseed_numpy is not None:
                self._reseed_numpy()
            child.run_forked(*task)
        except BaseException as error:
            child.report(error)
        finally:
            os._exit(1)

    def _is_fit(self, request: Spawn, loaded: bool = False) -> bool:
        """Return whether a fork is sufficient; checked again after the main program's imports were `loaded`."""
        if request.surroundings == self._surroundings and not loaded:
            return True
        theirs = decode_surroundings(request.surroundings)
        fit = is_fit(theirs)
        if not fit and not self._told:
            from dragon.runtime.log import runtime_log  # not loaded before: every module here makes every fork dearer

            self._told = True
            runtime_log("zygote").info(
                "%s starts as a fresh interpreter, for what is read when one starts: %s",
                request.name,
                " ".join([*theirs.options, *theirs.variables]),
            )
        return fit

    # ---- the main program

    def _load_main(self, request: Spawn) -> None:
        """Import the main program, once, so that its imports are shared by all children."""
        self._main = request.main
        take_over(request.surroundings)
        self._surroundings = request.surroundings
        self._hooks.watch()
        assert request.main is not None
        try:
            child.import_main(request.main)
        except BaseException as error:
            # The started process raises the same error, where the user sees it.
            self._give_up_forking(" ".join(f"raised {type(error).__name__}: {error}".split()))
        else:
            reason = unsafe_to_fork()
            if reason:
                self._give_up_forking(reason)
        self._server.disown()  # processes that the import started belong to the main program
        self._reseed_numpy = _numpy_seed()
        _RANDOM.gauss_next = None  # the second number of a pair of which the import has drawn one
        # Otherwise every child would print the buffered output of the import again.
        cpython.flush_streams()
        gc.freeze()

    def _give_up_forking(self, reason: str) -> None:
        from dragon.runtime.log import runtime_log  # not loaded before: every module here makes every fork dearer

        self._safe = False
        runtime_log("zygote").warning(
            "processes start as fresh interpreters, which takes longer: importing the main program %s", reason
        )

    def _start_fresh(self, request: Spawn) -> int:
        options = decode_surroundings(request.surroundings).options
        descriptors = self._server.descriptors()
        path = str(Path(child.__file__).parents[2])
        code = f"import sys; sys.path.append({path!r}); from dragon.runtime.child import main_fresh; main_fresh(3)"
        environment = self._environment(request)
        environment["DRAGON_DESCRIPTORS"] = str(len(descriptors) - 3)
        with in_memory(self._server.request()) as memory:
            return _core.start_executable(
                executable=sys.executable,
                arguments=[sys.executable, *options, "-c", code],
                environment=[f"{name}={value}" for name, value in environment.items()],
                folder=restored(request.folder),
                descriptors=[*descriptors[:3], memory.fileno(), *descriptors[3:]],
                cpus=request.cpus,
                limits=request.limits,
                signals=request.signals,
                death_signal=signal.SIGKILL,
                reaper=True,
                detached=False,
            )


def _numpy_seed() -> Callable[[], Any] | None:
    """Return NumPy's function that seeds its global generator from the system; None if the program has seeded it
    itself."""
    module: Any = sys.modules.get("numpy.random.mtrand")
    if module is None:
        return None
    bits = module._rand._bit_generator
    sequence = getattr(bits, "_seed_seq", None)  # the seed from the system; None if it was seeded otherwise
    if sequence is None:
        return None
    key = bits.state["state"]["key"]
    unseeded = type(bits)(sequence)
    for _ in range(_MOST_DRAWN):
        if (unseeded.state["state"]["key"] == key).all():
            seed: Callable[[], Any] = module.seed
            return seed
        unseeded.random_raw(len(key))
    return None  # its state was set


class _ForkHooks:
    """Whether modules outside the standard library have registered hooks for forks (os.register_at_fork)."""

    def __init__(self) -> None:
        self.foreign = False

    def watch(self) -> None:
        """Detect every registration from now on."""
        register = os.register_at_fork

        def register_at_fork(**hooks: Any) -> None:
            self.foreign = True
            register(**hooks)

        os.register_at_fork = register_at_fork
