"""Loading workers that are forked from their trainer, and so share all of its memory.

At the beginning of an epoch the trainer forks a *template*: a single-threaded process that keeps the dataset as it was
then. All workers of that epoch are forked from it, also those that start in the middle. The template ends with its
trainer, however that ends, and its workers end with it.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, NoReturn

from dragon.forking import begin_child
from dragon.native.event import Event
from dragon.serialization import dumps, loads
from dragon.signals import end_with_parent
from torchloader.loader import options

_LONGEST = 128 * 1024  # bytes of a message
_END = b"end"
_LOOK_AFTER_TRAINER_S = 0.5  # seconds
_GONE = -signal.SIGKILL  # how workers end whose template is gone


class Fork:
    """A worker that was forked from a template."""

    def __init__(self, template: Template, pid: int) -> None:
        self._template, self.pid = template, pid

    @property
    def is_alive(self) -> bool:
        return self.returncode is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the worker runs."""
        return self._template.code_of(self.pid)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


class Template:
    """A process with the trainer's state when it was made, which forks workers. Raises OSError if fork() fails."""

    def __init__(self, inherited: object) -> None:
        _flush()  # or every fork would write again what is still to be written
        _reap()
        Event()  # the run's memory is there, so that forks have it, too
        self._trainer = os.getpid()
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self._is_gone = False
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._pid = pid = os.fork()
            except OSError:
                self._ours.close()
                raise
            if pid == 0:
                self._ours.close()
                options.inherited = inherited
                _serve(theirs, self._trainer)
        # No __del__, which may come after that of the socket, whose own warns that nobody closed it.
        weakref.finalize(self, _leave, self._ours, self._trainer, pid).atexit = False

    @property
    def is_alive(self) -> bool:
        with self._lock:
            self._receive_all()
            return not self._is_gone

    def start(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> Fork:
        with self._lock:
            try:
                self._ours.send(dumps((target, arguments)))
            except ConnectionError:
                self._is_gone = True
            while True:
                reply = None if self._is_gone else self._receive()
                if reply is None:
                    raise ChildProcessError(
                        f"no loading worker can be started: process {self._pid}, which they are forked from, has "
                        "ended, perhaps for lack of memory. The next iteration has another one"
                    )
                if isinstance(reply, OSError):
                    raise reply
                if isinstance(reply, int):
                    return Fork(self, reply)

    def code_of(self, pid: int) -> int | None:
        """Return the exit code of a worker; None while it runs."""
        with self._lock:
            self._receive_all()
            return self._codes.get(pid, _GONE if self._is_gone else None)

    def _receive_all(self) -> None:
        while not self._is_gone and wait([self._ours], 0):
            self._receive()

    def _receive(self) -> int | OSError | tuple[int, int] | None:
        """Receive the pid of a new worker, an error, or a pid and its exit code; None if the template has ended."""
        try:
            data = self._ours.recv(_LONGEST)
        except ConnectionError:
            data = b""
        if not data:
            self._is_gone = True
            return None
        message: int | OSError | tuple[int, int] = pickle.loads(data)
        if isinstance(message, tuple):
            self._codes[message[0]] = message[1]
        return message

    def end(self) -> None:
        """Start no more workers. The template ends after its last worker."""
        _send_end(self._ours, self._trainer)


def _send_end(template: socket.socket, trainer: int) -> None:
    if os.getpid() == trainer:  # and not one that was forked from it
        with suppress(OSError):
            template.send(_END)


def _leave(template: socket.socket, trainer: int, pid: int) -> None:
    _send_end(template, trainer)
    template.close()
    _left.add(pid)


_left: set[int] = set()  # templates that end, or have ended


def _reap() -> None:
    for pid in list(_left):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _left.discard(pid)


# ---- in the template


def _serve(trainer: socket.socket, pid: int) -> NoReturn:
    """Fork workers until the trainer has ended, or needs no more of them and all have ended."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ended, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.freeze()  # or the first collection of each worker would write to every object, and so copy its page
        serves = has_workers = True
        while os.getppid() == pid and (serves or has_workers):
            ready = wait([trainer, ended], _LOOK_AFTER_TRAINER_S)
            if ended in ready:
                ended.recv(_LONGEST)
            if trainer in ready:
                data = trainer.recv(_LONGEST)
                if not data:
                    break
                if data == _END:
                    serves = False
                else:
                    _fork(trainer, data)
            has_workers = _send_ended(trainer)
        code = 0
    except ConnectionError:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _send_ended(trainer: socket.socket) -> bool:
    """Send the exit codes of ended workers to the trainer. Returns whether workers remain."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with suppress(ConnectionError):  # the trainer has ended
                trainer.send(pickle.dumps((ended[0], os.waitstatus_to_exitcode(ended[1]))))
    except ChildProcessError:
        return False
    return True


def _fork(trainer: socket.socket, data: bytes) -> None:
    template = os.getpid()
    reply: int | OSError
    try:
        reply = os.fork()
    except OSError as error:
        reply = error
    if reply == 0:
        _be_worker(trainer, data, template)
    trainer.send(pickle.dumps(reply))


def _be_worker(trainer: socket.socket, data: bytes, template: int) -> NoReturn:
    code = 1
    try:
        trainer.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_with_parent(signal.SIGKILL)
        begin_child()
        if os.getppid() == template:
            target, arguments = loads(data)
            target(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)
