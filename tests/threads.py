"""Use each kind of object from several threads of one process at once: dragon tests/threads.py [PART ...]

For interpreters without a GIL, and for ThreadSanitizer, which reports data races between the threads of one process
(docs/pythons.md). With `dragon` another process starts the run: ThreadSanitizer loses track of what a thread
synchronises once it has started a process. Each part checks what the threads did: nothing is lost, nothing comes twice,
and an object that is closed or destroyed while it is used raises the documented errors. `dictionaries` uses LMDB's
binding, which switches the GIL on.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing as mp
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import dragon  # noqa: F401  registers the start method
from dragon import _core
from dragon.native import (
    Array,
    Barrier,
    BoundedSemaphore,
    Condition,
    Event,
    Lock,
    Pool,
    Process,
    Queue,
    RLock,
    Semaphore,
    Value,
)

THREADS = 3
# None; what is copied under the lock; in a block; without the GIL; with buffers of its own.
PAYLOADS: list[Any] = [None, 7, 0.5, "text", b"x" * 200, b"y" * 5_000, b"z" * 300_000, ["a", {"b": 1}],
                       bytearray(b"w" * 70_000)]  # fmt: skip
# ValueError includes DestroyedError. A thread that waits for a message gets EOFError.
GONE = ValueError, EOFError, OSError


def at_once(*works: Callable[[], object]) -> None:
    """Call all of these in threads that begin together. Raises the errors of the threads as an ExceptionGroup."""
    barrier, errors = threading.Barrier(len(works)), list[Exception]()

    def run(work: Callable[[], object]) -> None:
        barrier.wait()
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise ExceptionGroup("threads failed", errors)


def each(times: int, work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls `work` so often."""
    return lambda: [work() for _ in range(times)] and None


def until_gone(work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls `work` until the object that it uses is gone."""

    def use() -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                work()
            except GONE:
                return
            except (queue.Empty, queue.Full):
                pass
        raise TimeoutError("the object was still there after 30 s")

    return use


def messages(put: Callable[[Any], object], get: Callable[[], Any], looks: Iterable[Callable[[], object]],
             rounds: int) -> None:  # fmt: skip
    """Have threads put messages and other threads get them: each comes once and whole."""
    taken: list[list[Any]] = [[] for _ in range(THREADS)]
    puts = [
        lambda number=number: [put((number, i, PAYLOADS[i % len(PAYLOADS)])) for i in range(rounds)]
        for number in range(THREADS)
    ]
    gets = [lambda mine=mine: mine.extend(get() for _ in range(rounds)) for mine in taken]
    at_once(*puts, *gets, *(each(rounds, look) for look in looks))
    found = sorted((number, i) for number, i, _ in itertools.chain(*taken))
    assert found == [(number, i) for number in range(THREADS) for i in range(rounds)]
    assert all(payload == PAYLOADS[i % len(PAYLOADS)] for _, i, payload in itertools.chain(*taken))


def queues(rounds: int) -> None:
    """One queue, and one with a limit."""
    for one in Queue(), Queue(maxsize=2):
        messages(one.put, lambda one=one: one.get(timeout=120), [one.size, one.empty, one.full], rounds)


def joinable(rounds: int) -> None:
    """One queue whose tasks are reported as done, while other threads wait for that."""
    for one in Queue(joinable=True), mp.get_context("dragon").JoinableQueue():

        def get(one: Any = one) -> Any:
            message = one.get(timeout=120)
            one.task_done()
            return message

        messages(one.put, get, [one.join], rounds)
        one.join()


def connections(rounds: int) -> None:
    """One pipe: threads send at one end and receive at the other, in both directions."""
    left, right = mp.get_context("dragon").Pipe()
    messages(left.send, right.recv, [right.poll, left.fileno], rounds)
    messages(right.send, left.recv, [left.poll, right.fileno], rounds)


def locks(rounds: int) -> None:
    """One lock of each kind, under which a number is counted up."""
    for one in Lock(), RLock(), Semaphore(1), BoundedSemaphore(1), mp.get_context("dragon").RLock():
        count = [0]

        def count_up(one: Any = one, count: list[int] = count) -> None:
            with one:
                if "RLock" in type(one).__name__:
                    with one:
                        pass
                count[0] += 1

        def try_it(one: Any = one) -> None:
            if one.acquire(False):
                one.release()

        at_once(*[each(rounds, count_up)] * THREADS, each(rounds, try_it))
        assert count == [rounds * THREADS]


def signals(rounds: int) -> None:
    """One event, condition and barrier."""
    event, condition, barrier, steps = Event(), Condition(), Barrier(THREADS), [0]

    def set_and_clear() -> None:
        for _ in range(rounds):
            event.set()
            event.is_set()
            event.clear()
        event.set()

    at_once(*[each(rounds, lambda: event.wait(0.001))] * THREADS, set_and_clear, event.wait)

    def step(number: int) -> None:
        for _ in range(rounds):
            with condition:
                assert condition.wait_for(lambda: steps[0] % THREADS == number, 120)
                steps[0] += 1
                condition.notify_all()

    at_once(*[lambda number=number: step(number) for number in range(THREADS)])
    assert steps == [rounds * THREADS]
    at_once(*[each(rounds, lambda: barrier.wait(120))] * THREADS)


def values(rounds: int) -> None:
    """One value and one array, under their locks; and one of a single word without."""
    value, array, free = Value("i", 0, lock=True), Array("d", 8), mp.get_context("dragon").RawValue("q", 0)

    def add() -> None:
        with value.get_lock():
            value.value += 1
        with array.get_lock():
            array[3] += 1

    at_once(*[each(rounds, add)] * THREADS)
    assert value.value == array[3] == rounds * THREADS
    assert free.value == 0


def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


def answer(asked: Queue, answers: Any) -> None:
    """Put the square of a number that is in one queue into the other."""
    answers.put(square(asked.get(timeout=120)))


def processes(rounds: int) -> None:
    """Processes that all threads start, each with objects of its own and of all."""
    answers = Queue()

    def start() -> None:
        for number in range(max(rounds // 30, 2)):
            asked = Queue()
            process = Process(answer, (asked, answers))
            process.start()
            asked.put(number)
            process.join()
            assert process.exitcode == 0

    at_once(*[start] * THREADS)
    assert sorted(answers.get(timeout=120) for _ in range(answers.size())) == sorted(
        [number * number for number in range(max(rounds // 30, 2))] * THREADS
    )


def pools(rounds: int) -> None:
    """One pool, to which all threads give tasks, one at a time and in lists."""
    for pool in Pool(2), mp.get_context("dragon").Pool(2):

        def ask(pool: Any = pool) -> None:
            results = [pool.apply_async(square, (number,)) for number in range(rounds)]
            assert [result.get(120) for result in results] == [n * n for n in range(rounds)]
            assert pool.map(square, range(20)) == [n * n for n in range(20)]
            assert sum(pool.imap_unordered(square, range(20))) == 2470

        at_once(*[ask] * THREADS)
        pool.close()
        pool.join()


def closing(rounds: int) -> None:
    """Objects that one thread closes or destroys while others use them, and wait for them."""
    for number in range(max(rounds // 10, 2)):
        for end in "_close", "_destroy":
            end_a_queue(end, number % 3 / 100)
            for one in Lock(), RLock(), Semaphore(1), Event(), Condition():
                at_once(*[until_gone(partial(use, one))] * THREADS, partial(end_later, 0.002, getattr(one, end)))
        end_a_pipe()


def end_a_queue(end: str, seconds: float) -> None:
    """Call the method `end` of a queue that other threads use."""
    one = Queue(3, joinable=True)
    uses = [partial(one.put, b"y" * 5_000, timeout=0.5), partial(one.get, timeout=0.5), partial(one.put_nowait, 1),
            partial(one.poll, 0.5), one.size, lambda: (one._fileno(), one.size())]  # fmt: skip
    at_once(*map(until_gone, uses), partial(end_later, seconds, getattr(one, end)))


def end_a_pipe() -> None:
    """Close one end of a pipe, both of which other threads use."""
    left, right = mp.get_context("dragon").Pipe()
    uses = partial(left.send, b"x" * 2_000), partial(left.poll, 0.5), right.recv
    at_once(*map(until_gone, uses), left.close)


def end_later(seconds: float, end: Callable[[], object]) -> None:
    """Call `end` after some seconds."""
    time.sleep(seconds)
    end()


def use(one: Any) -> None:
    """Use a lock, a semaphore, an event or a condition once."""
    if isinstance(one, Event):
        one.set()
        one.wait(0.5)
        one.clear()
    elif isinstance(one, Condition):
        with one:
            one.notify()
            one.wait(0.001)
    elif one.acquire(timeout=0.01):
        try:
            one.release()
        except AssertionError:  # it was destroyed between
            raise ValueError("the lock is gone") from None


def copies(rounds: int) -> None:
    """Objects that threads make, pass to each other, and drop, also in the garbage collector's order."""
    passed = Queue()

    def send() -> None:
        for number in range(rounds):
            own = Queue(), Lock(), Event(), Semaphore(2), Value("i", number)
            own[0].put(number)
            passed.put(own)
            _own, other = mp.get_context("dragon").Pipe()
            passed.put((other, own[1], own[2], own[3], own[4]))
            del own, other
            if number % 20 == 0:
                gc.collect()

    def receive() -> None:
        for _ in range(2 * rounds):
            first, lock, event, semaphore, value = passed.get(timeout=120)
            with lock, semaphore:
                event.set()
                value.value += 1
            if not isinstance(first, Connection) and hasattr(first, "size"):
                first.get(timeout=120)

    at_once(*[send] * 2, *[receive] * 2)


def dictionaries(rounds: int) -> None:
    """One dictionary. Its threads have the GIL by turns."""
    from dragon.data.ddict import DDict

    one = DDict(1, 1, 2**26)

    def change(number: int) -> None:
        for i in range(rounds):
            one[number, i] = PAYLOADS[i % len(PAYLOADS)]
            assert one[number, i] == PAYLOADS[i % len(PAYLOADS)]
            if i % 3 == 0:
                del one[number, i]
        assert sum(key[0] == number for key in one.keys()) == rounds - (rounds + 2) // 3  # noqa: SIM118

    at_once(*[lambda number=number: change(number) for number in range(THREADS)])
    one.destroy()


def leaving(rounds: int) -> None:
    """The run, which one thread leaves while others use its objects, and make some. Nothing can follow."""
    one, lock = Queue(3), Lock()

    def make_and_drop() -> None:
        Event().set()

    def put_and_get() -> None:
        one.put(b"y" * 5_000, timeout=0.5)
        one.get(timeout=0.5)

    def lock_and_unlock() -> None:
        with lock:
            pass

    uses = put_and_get, put_and_get, lock_and_unlock, make_and_drop
    at_once(*map(until_gone, uses), partial(end_later, rounds / 1000, _core.close_arena))


PARTS = {part.__name__: part for part in
         (queues, joinable, connections, locks, signals, values, processes, pools, closing, copies, dictionaries,
          leaving)}  # fmt: skip


def main() -> int:
    """Run the parts that the command line names. Returns 0; a part that fails raises its error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--rounds", type=int, default=300, help="how often each thread does it (default: 300)")
    options = parser.parse_args()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)
    for name in options.parts or PARTS:
        began = time.monotonic()
        PARTS[name](options.rounds)
        print(f"{name}: done in {time.monotonic() - began:.1f} s, {'with the GIL' if gil() else 'without a GIL'}",
              flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
