"""Programs whose processes are killed at random points, hundreds of times; test_faults.py runs each in an interpreter.

A program has a few workers that loop forever. They are killed and replaced one after another, while the others
continue. The survivors must make progress and must never see incomplete data, and in the end the memory of the killed
workers must be free again.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable

import numpy as np

import dragon.runtime.serialization  # noqa: F401  tells the core how to pickle
from dragon import _core

PR_SET_PDEATHSIG = 1
READER = 1
PATIENCE = 20.0  # seconds, for operations that take milliseconds
MIB = 2**20
_clock = time.monotonic


class Workers:
    """Forked loops. Each counts its rounds in a word of shared memory, which shows whether it makes progress."""

    def __init__(self, seed: int, loops: list[Callable[[Callable[[], None], random.Random], None]]) -> None:
        self.random = random.Random(seed)
        self.loops = loops
        self.progress = _core.Words(len(loops))
        self.pids = [0] * len(loops)

    def start(self, i: int) -> None:
        seed = self.random.random()
        pid = os.fork()
        if pid == 0:
            _core.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                self.loops[i](lambda: self.progress.add(i, 1) and None, random.Random(seed))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        self.pids[i] = pid

    def kill(self, i: int) -> None:
        os.kill(self.pids[i], signal.SIGKILL)
        _, status = os.waitpid(self.pids[i], 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "a worker failed, see its traceback"

    def churn(self, kills: int, between: Callable[[], None] = lambda: None) -> None:
        """Kill and replace workers; then assert that all make progress, and end them."""
        for i in range(len(self.loops)):
            self.start(i)
        for _ in range(kills):
            time.sleep(self.random.choice([0, 0.0002, 0.001, 0.004]) * self.random.random())
            i = self.random.randrange(len(self.loops))
            self.kill(i)
            if self.random.random() < 0.7:
                self.reap()
            between()
            self.start(i)
        self.check_progress(between)
        for i in range(len(self.loops)):
            self.kill(i)
        _core.reap_dead()

    def reap(self) -> None:
        """Reap killed workers in a process that may itself be killed meanwhile, as an agent may."""
        if self.random.random() < 0.7:
            _core.reap_dead()
            return
        pid = os.fork()
        if pid == 0:
            _core.reap_dead()
            os._exit(0)
        time.sleep(self.random.random() * 0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def check_progress(self, between: Callable[[], None]) -> None:
        before = list(self.progress)
        end = _clock() + PATIENCE
        while any(now - then < 3 for now, then in zip(self.progress, before, strict=True)):
            assert _clock() < end, f"no progress: {before} to {list(self.progress)} of {self.pids}"
            _core.reap_dead()
            between()
            time.sleep(0.005)


Program = Callable[[int], None]
programs: dict[str, Program] = {}


def _blocks() -> int:
    gc.collect()
    _core.reap_dead()
    return _core.usage()["blocks"]


def leaves_nothing(program: Program) -> Program:
    """Wrap a program so that it runs twice, after which no more memory may be in use than before."""

    @functools.wraps(program)
    def run(seed: int) -> None:
        before = _blocks()
        program(seed)
        program(seed + 1000)
        after = _blocks()
        # One block holds the table of what this process is attached to.
        assert after <= before + 1, f"{before} blocks before, {after} after"

    programs[program.__name__] = run
    return run


# ---- queues

SIZES = [0, 1, 100, 215, 216, 217, 1000, 4000, 5000, 70_000]
HEAD = 24


def _message(producer: int, sequence: int, size: int) -> bytes:
    body = bytes([sequence % 251]) * size
    return b"".join(n.to_bytes(8, "little") for n in (producer, sequence, zlib.crc32(body))) + body


def _check_message(message: bytes, last: dict[int, int]) -> None:
    producer, sequence, checksum = (int.from_bytes(message[i : i + 8], "little") for i in (0, 8, 16))
    assert zlib.crc32(message[HEAD:]) == checksum, "a torn message"
    assert sequence > last.get(producer, -1), "a message overtook another of its producer, or came twice"
    last[producer] = sequence


def _as_bytes(message: object) -> bytes:
    return message.tobytes() if isinstance(message, np.ndarray) else bytes(message)  # type: ignore[call-overload]


def _queue_program(seed: int, kills: int, channel: _core.Channel, sizes: list[int]) -> None:
    # A producer is one process: its successor starts again at 0.
    def produce(progress: Callable[[], None], rng: random.Random) -> None:
        sequence = 0
        while True:
            message = _message(os.getpid(), sequence, rng.choice(sizes))
            channel.put(np.frombuffer(message, np.uint8) if sequence % 4 == 0 else message)
            sequence += 1
            progress()

    def consume(progress: Callable[[], None], rng: random.Random) -> None:
        last: dict[int, int] = {}
        kept: list[object] = []
        while True:
            message = channel.get()
            _check_message(_as_bytes(message), last)
            kept = [*kept[-3:], message]  # arrays in memory on loan
            progress()

    Workers(seed, [produce, produce, consume, consume]).churn(kills)
    last: dict[int, int] = {}
    while channel._size():
        _check_message(_as_bytes(channel.get(timeout=PATIENCE)), last)
    for i in range(3):
        channel.put(i)
    assert [channel.get(timeout=PATIENCE) for _ in range(3)] == [0, 1, 2]


@leaves_nothing
def queue(seed: int) -> None:
    _queue_program(seed, 120, _core.Channel(16), SIZES)


@leaves_nothing
def unbounded_queue(seed: int) -> None:
    """Pass small messages through a queue with many spare blocks."""
    _queue_program(seed, 120, _core.Channel(), [0, 50, 200])


@leaves_nothing
def large_messages(seed: int) -> None:
    """Pass large messages with little memory, so that pages are reused often."""
    _queue_program(seed, 100, _core.Channel(4), [300_000, MIB, MIB + 1, 3 * MIB])
    usage = _core.usage()
    assert usage["committed"] <= usage["limit"]
    _core.trim()
    assert _core.usage()["committed"] < 32 * MIB, _core.usage()


# ---- locks and the rest


@leaves_nothing
def lock(seed: int) -> None:
    """Keep two words equal under a lock, unless the lock reports that its holder died."""
    for recursive in (False, True):
        the_lock, words = _core.Lock(recursive), _core.Words(2)

        def work(progress: Callable[[], None], rng: random.Random, lock=the_lock, words=words) -> None:
            warnings.simplefilter("always")
            while True:
                with warnings.catch_warnings(record=True) as caught:
                    block = rng.random() < 0.7
                    if not lock.acquire(block, PATIENCE if block else None):
                        assert not block, "a lock was never released or recovered"
                        continue
                if caught:
                    words[1] = words[0]
                assert words[0] == words[1], "the lock let two in, or did not tell that its holder died"
                words[0] = words[0] + 1
                words[1] = words[1] + 1
                lock.release()
                progress()

        Workers(seed, [work] * 4).churn(80)


@leaves_nothing
def lock_with_warnings_as_errors(seed: int) -> None:
    """Turn the warning about a dead holder into an exception: a process that receives it does not have the lock."""
    for recursive in (False, True):
        the_lock = _core.Lock(recursive)
        if os.fork() == 0:
            the_lock.acquire()
            os._exit(0)
        os.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                the_lock.acquire(timeout=PATIENCE)
            except RuntimeWarning:
                pass
            else:
                raise AssertionError("nobody was told that the holder died")
        assert the_lock._count() == 0
        assert the_lock.acquire(False)


@leaves_nothing
def semaphore(seed: int) -> None:
    """Check that the acquisitions of killed processes are lost, and those of the others are not."""
    permits = 3
    sem = _core.Semaphore(permits)

    def work(progress: Callable[[], None], rng: random.Random) -> None:
        while True:
            if sem.acquire(timeout=PATIENCE if rng.random() < 0.8 else 0.0001):
                sem.release()
                progress()

    dry_since = [0.0]

    def top_up() -> None:
        assert sem._value() <= permits, "more permits than there are"
        if sem._value() > 0:
            dry_since[0] = 0.0
        elif dry_since[0] == 0.0:
            dry_since[0] = _clock()
        elif _clock() - dry_since[0] > 0.02:
            sem.release()

    Workers(seed, [work] * 4).churn(120, top_up)


@leaves_nothing
def condition(seed: int) -> None:
    the_lock, cond, words = _core.Lock(True), _core.Condition(), _core.Words(1)

    def wait(progress: Callable[[], None], rng: random.Random) -> None:
        warnings.simplefilter("ignore")
        while True:
            assert the_lock.acquire(timeout=PATIENCE)
            seen = words[0]
            end = _clock() + PATIENCE
            while words[0] == seen:
                waiter = cond._enter()
                the_lock.release()
                cond._sleep(waiter, PATIENCE if rng.random() < 0.9 else 0.001)
                cond._leave(waiter)
                assert the_lock.acquire(timeout=PATIENCE)
                assert _clock() < end, "never notified"
            the_lock.release()
            progress()

    def notify(progress: Callable[[], None], rng: random.Random) -> None:
        warnings.simplefilter("ignore")
        while True:
            assert the_lock.acquire(timeout=PATIENCE)
            words[0] = words[0] + 1
            cond._notify(rng.choice([1, 2, 100]))
            the_lock.release()
            progress()
            time.sleep(0.0005)

    Workers(seed, [wait, wait, wait, notify]).churn(120)
    assert cond._notify(100) == 0, "dead waiters are still there"


# ---- lifetimes


@leaves_nothing
def handles(seed: int) -> None:
    """Create, send, attach to and release objects all the time."""
    channel = _core.Channel(16)

    def send(progress: Callable[[], None], rng: random.Random) -> None:
        made = [_core.Event(), _core.Lock(), _core.Channel()]
        while True:
            made[rng.randrange(2)] = rng.choice([_core.Event, _core.Lock])()
            pipe = rng.random() < 0.5
            made[2] = _core.Channel(0, pipe, READER if pipe else 0)
            made[2].put(b"x" * rng.choice([10, 1000]))
            handle = rng.choice(made)
            handle._send()
            channel.put((type(handle).__name__, handle._name()))
            progress()

    def attach(progress: Callable[[], None], rng: random.Random) -> None:
        kept: list[object] = []
        while True:
            kind, name = channel.get()
            try:
                kept = [*kept[-10:], getattr(_core, kind)(name)]
            except _core.DestroyedError:
                pass  # its sender was killed
            progress()

    Workers(seed, [send, send, attach, attach]).churn(120)
    while channel._size():
        channel.get()


@leaves_nothing
def forked_copies(seed: int) -> None:
    """Check that a forked child's copy of a handle does not keep the object, and raises once the object is freed."""
    made = [_core.Channel(), _core.Lock(), _core.Semaphore(), _core.Event(), _core.Words(1)]
    gone = _core.Words(1)
    pid = os.fork()
    if pid == 0:
        gone.wait(0, 0, PATIENCE)
        missed = 0
        uses = [made[0].get_nowait, made[1].acquire, made[2].acquire, made[3].set, lambda: made[4].add(0, 1)]
        for use in uses:
            try:
                use()
                missed += 1
            except _core.DestroyedError:
                pass
        os._exit(missed)
    for handle in made:
        handle._close()
    successors = [_core.Channel(), _core.Lock(), _core.Semaphore(), _core.Event(), _core.Words(1)]
    gone.add(0, 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert successors[1].acquire(False)


@leaves_nothing
def leaving(seed: int) -> None:
    """Check that a process that ends normally leaves nothing to reap, unless a thread or a block is still in use."""
    for in_use in (None, "thread", "block"):
        event = _core.Event()
        pid = os.fork()
        if pid == 0:
            copy, channel = _core.Event(event._name()), _core.Channel()
            channel.put(np.zeros(5000))
            array = channel.get() if in_use == "block" else None
            if in_use == "thread":
                threading.Thread(target=copy.wait, daemon=True).start()
            _core.leave_arena()
            if in_use is None:
                try:
                    copy.set()
                except _core.DestroyedError:
                    os._exit(0)
            os._exit(0 if in_use and not copy.is_set() and array is not event else 1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, in_use
        assert (_core.reap_dead() == 0) == (in_use is None)


def main(name: str, seed: int) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _core.create_arena(192 * MIB)
    programs[name](seed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
