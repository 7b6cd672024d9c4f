"""Programs in which a process is stopped (SIGSTOP) at random points, hundreds of times; test_stops.py runs them.

There are a few pairs of processes, each with objects of its own. While a process of one pair is stopped the others must
continue.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

import dragon.runtime.serialization  # noqa: F401  tells the core how to pickle
from dragon import _core

PR_SET_PDEATHSIG = 1
PAIRS = 3
PATIENCE = float(os.environ.get("STOP_PATIENCE", "20"))  # seconds, for operations that take milliseconds
MIB = 2**20

Step = Callable[[], object]
_clock = time.monotonic


def stream(sizes: list[int], rng: random.Random) -> tuple[Step, Step]:
    """Return a step that passes a hundred messages of these sizes."""
    channel = _core.Channel(8)

    def put() -> None:
        for _ in range(100):
            channel.put(b"x" * rng.choice(sizes))

    def get() -> None:
        for _ in range(100):
            channel.get()

    return put, get


def messages(rng: random.Random) -> tuple[Step, Step]:
    """Pass messages of few size classes, whose blocks are handed from one process to the other."""
    return stream([300, 400, 1000], rng)


def large_messages(rng: random.Random) -> tuple[Step, Step]:
    """Pass messages that take pages from the system."""
    return stream([MIB, 3 * MIB], rng)


def handles(rng: random.Random) -> tuple[Step, Step]:
    """Create, send, attach to and release objects."""
    channel = _core.Channel(4)

    def send() -> None:
        event = _core.Event()
        event._send()
        channel.put(event._name())

    return send, lambda: _core.Event(channel.get())


def timeouts(rng: random.Random) -> tuple[Step, Step]:
    """Pass messages, while calls of `get()` on an empty channel time out."""
    channel, empty = _core.Channel(4), _core.Channel()

    def time_out() -> None:
        try:
            empty.get(timeout=0.001)
        except queue.Empty:
            channel.put(b"x" * 500)

    return time_out, channel.get


programs = {program.__name__: program for program in (messages, large_messages, handles, timeouts)}


def start(step: Step, progress: _core.Words, i: int) -> int:
    """Fork a process that repeats the step and counts the repetitions."""
    pid = os.fork()
    if pid == 0:
        _core.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            while True:
                step()
                progress.add(i, 1)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def goes_on(progress: _core.Words, others: list[int]) -> bool:
    """Return whether each of the processes makes a few more steps."""
    before = {i: progress[i] for i in others}
    end = _clock() + PATIENCE
    while any(progress[i] < before[i] + 3 for i in others):
        if _clock() > end:
            return False
        time.sleep(0.0005)
    return True


# ---- one queue, whose own lock a stopped process holds


class Locked:
    """A channel in which a process was stopped, repeatedly until the stopped process held the channel's lock."""

    def __init__(self, rng: random.Random) -> None:
        self.channel = channel = _core.Channel(4)
        self.random = rng

        def step() -> None:
            for _ in range(1000):
                channel.put_nowait(b"x" * 200)
                channel.get_nowait()

        self.progress = _core.Words(1)
        self.pid = start(step, self.progress, 0)

    def __enter__(self) -> _core.Channel:
        end = _clock() + 3 * PATIENCE
        while _clock() < end:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)
            if self.channel._holder() == self.pid:
                return self.channel
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(self.random.random() * 0.002)
        raise AssertionError("it was never stopped with the lock")

    def __exit__(self, *exc_info: object) -> None:
        os.kill(self.pid, signal.SIGCONT)
        assert goes_on(self.progress, [0])

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        _core.reap_dead()
        self.channel.put(7, timeout=PATIENCE)


def _wait_in_vain(wait: Callable[[], object]) -> None:
    """Wait for 0.2 s at a locked queue."""
    begun = _clock()
    try:
        wait()
    except (queue.Empty, queue.Full):
        assert 0.15 < _clock() - begun < PATIENCE
    else:
        raise AssertionError("the queue was not locked")


def waits_on_a_locked_queue(rng: random.Random, stops: int) -> None:
    """Check that waits time out while other threads continue, and that `get_nowait()` and `put_nowait()` return
    soon.
    """
    locked = Locked(rng)
    for _ in range(stops):
        with locked as channel:
            ticks = [0]
            ended = threading.Event()

            def tick(ticks: list[int] = ticks, ended: threading.Event = ended) -> None:
                while not ended.wait(0.01):
                    ticks[0] += 1

            thread = threading.Thread(target=tick, daemon=True)
            thread.start()
            for wait in (lambda c=channel: c.get(timeout=0.2), lambda c=channel: c.put(b"y" * 1000, timeout=0.2)):
                before = ticks[0]
                for _ in range(20):  # on a busy machine the other thread may have no processor for a while
                    _wait_in_vain(wait)
                    if ticks[0] > before:
                        break
                else:
                    raise AssertionError("no other thread went on")
            ended.set()
            thread.join()
    with locked as channel:
        for attempt in (channel.get_nowait, lambda c=channel: c.put_nowait(b"y")):
            begun = _clock()
            try:
                attempt()
            except (queue.Empty, queue.Full):
                assert _clock() - begun < PATIENCE
    locked.end()


class Woken(Exception):
    """The exception that the signal handler raises."""


def _interrupted(wait: Step) -> None:
    def wake(*arguments: object) -> None:
        raise Woken

    signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    begun = _clock()
    try:
        wait()
    except Woken:
        assert _clock() - begun < PATIENCE
    else:
        raise AssertionError("the wait was not interrupted")


def interrupts_on_a_locked_queue(rng: random.Random, stops: int) -> None:
    """Check that a signal handler runs while a wait without a timeout is blocked."""
    locked = Locked(rng)
    for _ in range(stops):
        with locked as channel:
            _interrupted(channel.get)
            _interrupted(lambda c=channel: c.put(b"y" * 1000))
    locked.end()


def closes_a_locked_queue(rng: random.Random, stops: int) -> None:
    """Check that operations without a timeout can be interrupted, and that a handle is closed at once."""
    for _ in range(stops):
        locked = Locked(rng)
        copy = _core.Channel(locked.__enter__()._name())
        _interrupted(copy._destroy)
        begun = _clock()
        copy._close()
        assert _clock() - begun < PATIENCE
        os.kill(locked.pid, signal.SIGKILL)
        os.waitpid(locked.pid, 0)
        _core.reap_dead()


with_one = {
    program.__name__: program
    for program in (waits_on_a_locked_queue, interrupts_on_a_locked_queue, closes_a_locked_queue)
}


def main(name: str, seed: int, stops: int) -> int:
    """Return how many of the stops kept another pair from making progress."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _core.create_arena(512 * MIB)
    rng = random.Random(seed)
    if name in with_one:
        with_one[name](rng, stops)
        return 0
    progress = _core.Words(2 * PAIRS)
    steps = [step for pair in range(PAIRS) for step in programs[name](random.Random(seed + pair))]
    pids = [start(step, progress, i) for i, step in enumerate(steps)]
    assert goes_on(progress, list(range(2 * PAIRS)))
    held_up = 0
    for _ in range(stops):
        time.sleep(rng.random() * 0.003)
        stopped = rng.randrange(2 * PAIRS)
        os.kill(pids[stopped], signal.SIGSTOP)
        held_up += not goes_on(progress, [i for i in range(2 * PAIRS) if i // 2 != stopped // 2])
        os.kill(pids[stopped], signal.SIGCONT)
    assert goes_on(progress, list(range(2 * PAIRS))), "what was stopped does not go on"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    _core.reap_dead()
    return held_up


if __name__ == "__main__":
    held_up = main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(f"{held_up} of {sys.argv[3]} stops held others up")
    sys.exit(held_up > 0)
