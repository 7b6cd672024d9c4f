"""Run small programs, given as lists of steps, with one start method, and report the result of each step.

python driver.py METHOD: read one program per line (JSON), and write one line of results for each.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from multiprocessing.shared_memory import ShareableList, SharedMemory
from typing import Any

import work

LONG, SHORT = 20.0, 0.03
Outcome = list[Any]


def outcome(call: Callable[[], Any]) -> Outcome:
    try:
        value = call()
    except BaseException as error:
        return ["raised", type(error).__name__]
    return ["gave", value if isinstance(value, (int, str, bool, type(None))) else repr(value)]


class Pools:
    """A pool and the results that its calls returned."""

    def __init__(self, context: Any, processes: int, initializer: bool, most: int | None) -> None:
        init = (work.initialize, ("set",)) if initializer else ()
        self.pool = context.Pool(processes, *init, maxtasksperchild=most)
        self.results: list[Any] = []
        self.iterators: list[tuple[Any, bool]] = []
        self.room = threading.Semaphore(3)
        self.called: list[Any] = []

    def source(self, kind: str, count: int) -> Any:
        def generator() -> Iterator[int]:
            for number in range(count):
                if kind == "waiting":
                    self.room.acquire()
                if kind == "slow":
                    time.sleep(0.002)
                if kind == "failing" and number == count - 1:
                    raise IndexError(number)
                yield number

        return list(range(count)) if kind == "list" else generator()

    def step(self, name: str, *given: Any) -> Any:
        if name in ("apply", "map", "starmap"):
            return getattr(self, name)(*given)
        return getattr(self, "do_" + name)(*given)

    def apply(self, function: str, value: Any) -> Any:
        return self.pool.apply(getattr(work, function), (value,))

    def map(self, function: str, count: int, chunk: int | None, kind: str = "list") -> Any:
        return self.pool.map(getattr(work, function), self.source(kind, count), chunk)

    def starmap(self, count: int, chunk: int | None) -> Any:
        return self.pool.starmap(work.add, [(number, 1) for number in range(count)], chunk)

    def do_apply_async(self, function: str, value: Any) -> None:
        self.results.append(self.pool.apply_async(getattr(work, function), (value,), {}, self.called.append, self.note))

    def do_map_async(self, function: str, count: int, chunk: int | None) -> None:
        self.results.append(
            self.pool.map_async(getattr(work, function), range(count), chunk, self.called.append, self.note)
        )

    def note(self, error: BaseException) -> None:
        self.called.append(type(error).__name__)

    def do_get(self) -> Any:
        return self.results.pop(0).get(LONG) if self.results else None

    def do_waited(self) -> Any:
        if not self.results:
            return None
        result = self.results[0]
        result.wait(LONG)
        return result.ready(), result.successful()

    def do_imap(self, function: str, kind: str, count: int, chunk: int, ordered: bool) -> None:
        method = self.pool.imap if ordered else self.pool.imap_unordered
        self.iterators.append((method(getattr(work, function), self.source(kind, count), chunk), ordered))

    def do_take(self, count: int) -> Any:
        if not self.iterators:
            return None
        iterator, ordered = self.iterators[0]
        taken = []
        for _ in range(count):
            taken.append(next(iterator))
            self.room.release()
        return taken if ordered else len(taken)

    def do_rest(self) -> Any:
        if not self.iterators:
            return None
        iterator, ordered = self.iterators.pop(0)
        taken = []
        for value in iterator:
            taken.append(value)
            self.room.release()
        return taken if ordered else sorted(taken)

    def do_abandon(self) -> None:
        """Keep the first iterator of results no longer."""
        del self.iterators[:1]

    def do_forget(self) -> None:
        """Keep the pool no longer: its pending results do."""
        self.pool = None

    def do_close(self) -> None:
        self.pool.close()

    def do_join(self) -> None:
        self.room.release(100)  # no one takes results meanwhile, so an iterator of inputs may block
        self.pool.join()

    def finish(self) -> Any:
        for result in self.results:
            result.wait(LONG)
        if self.pool is not None:
            self.pool.terminate()
            self.pool.join()
        return sorted(map(repr, self.called))


class Queues:
    """A queue. Its length is known, so that no step depends on timing."""

    def __init__(self, context: Any, kind: str, maxsize: int) -> None:
        self.context, self.kind, self.count, self.maxsize, self.closed = context, kind, 0, maxsize, False
        self.queue = context.SimpleQueue() if kind == "SimpleQueue" else getattr(context, kind)(maxsize)

    def step(self, name: str, *given: Any) -> Any:
        return getattr(self, "do_" + name)(*given)

    def is_full(self) -> bool:
        return self.kind != "SimpleQueue" and 0 < self.maxsize <= self.count

    def do_put(self, value: Any) -> None:
        if self.kind == "SimpleQueue":
            self.queue.put(value)
        else:
            self.queue.put(value, True, SHORT if self.is_full() else LONG)
        self.count += 1

    def do_put_from_a_process(self, values: list[Any]) -> Any:
        if self.closed or (self.maxsize and self.count + len(values) > self.maxsize):
            return None  # a closed queue must not be passed to other processes, as the guide says
        process = self.context.Process(target=work.put_all, args=(self.queue, values))
        process.start()
        process.join()
        self.count += len(values)
        return process.exitcode

    def do_get(self) -> Any:
        if self.kind == "SimpleQueue":
            value = self.queue.get() if self.count else None
        else:
            value = self.queue.get(True, LONG if self.count else SHORT)
        self.count -= bool(self.count)
        return value

    def do_size(self) -> Any:
        return None if self.kind == "SimpleQueue" else self.queue.qsize()

    def do_full(self) -> Any:
        return None if self.kind == "SimpleQueue" else self.queue.full()

    def do_empty(self) -> Any:
        return self.queue.empty() if not self.count else None

    def do_task_done(self) -> Any:
        return self.queue.task_done() if self.kind == "JoinableQueue" else None

    def do_close(self) -> Any:
        self.closed = True
        return self.queue.close()

    def finish(self) -> Any:
        if self.kind != "SimpleQueue":
            self.queue.close()
            self.queue.cancel_join_thread()
        return None


class Pipes:
    """The two ends of a pipe in one process, and the messages in flight."""

    def __init__(self, context: Any, duplex: bool) -> None:
        self.context = context
        self.ends = context.Pipe(duplex)
        self.under_way = [0, 0]

    def step(self, name: str, end: int, *given: Any) -> Any:
        connection = self.ends[end]
        match name:
            case "send":
                connection.send(given[0])
                self.under_way[1 - end] += 1
            case "send_bytes":
                connection.send_bytes(b"0123456789", *given)
                self.under_way[1 - end] += 1
            case "recv" | "recv_bytes" if self.under_way[end] or self.ends[1 - end].closed or connection.closed:
                self.under_way[end] = max(0, self.under_way[end] - 1)
                value = connection.recv_bytes(*given) if name == "recv_bytes" else connection.recv()
                return None if name == "recv_bytes" else value
            case "poll":
                return connection.poll(LONG if self.under_way[end] else 0)
            case "close":
                connection.close()
            case "state":
                return connection.closed, connection.readable, connection.writable
        return None

    def finish(self) -> Any:
        for end in self.ends:
            end.close()


class Sync:
    """One object of each synchronization class."""

    def __init__(self, context: Any) -> None:
        self.lock, self.rlock, self.event = context.Lock(), context.RLock(), context.Event()
        self.semaphore, self.bounded = context.Semaphore(2), context.BoundedSemaphore(2)
        self.condition, self.barrier, self.alone = context.Condition(), context.Barrier(2), context.Barrier(1)
        self.value, self.array = context.Value("i", 3), context.Array("d", [1.0, 2.0, 3.0])
        self.text, self.context = context.Array("c", 8), context

    def step(self, name: str, method: str, *given: Any) -> Any:
        target = getattr(self, name)
        match method:
            case "value":
                if given:
                    target.value = given[0]
                return target.value
            case "item":
                if len(given) > 1:
                    target[given[0]] = given[1]
                return target[given[0]]
            case "slice":
                return target[given[0] : given[1]]
            case "len":
                return len(target)
            case "increment":
                process = self.context.Process(target=work.increment, args=(target, given[0]))
                process.start()
                process.join()
                return target.value
            case "property":
                return getattr(target, given[0])
        return getattr(target, method)(*given)

    def finish(self) -> Any:
        return None


class Processes:
    """A process."""

    def __init__(self, context: Any, how: str, daemon: bool | None) -> None:
        self.process = context.Process(target=work.end, args=(how,), daemon=daemon)
        self.how, self.over = how, False

    def step(self, name: str) -> Any:
        process = self.process
        match name:
            case "start":
                return process.start()
            case "close" if self.how == "sleep" or self.over:  # otherwise the outcome depends on timing
                return process.close()
            case "terminate" | "kill" if self.how == "sleep":
                return getattr(process, name)()
            case "join" if self.how != "sleep":
                process.join(LONG)
                self.over = True
            case "join shortly" if self.how == "sleep":
                return process.join(SHORT)
            case "end":
                if self.how == "sleep":
                    process.terminate()
                process.join(LONG)
                self.over = True
                return process.exitcode, process.is_alive()
            case "daemon":
                return process.daemon
            case "make a daemon":
                process.daemon = True
            case "alive" if self.how == "sleep":
                return process.is_alive()
        return None

    def finish(self) -> Any:
        try:
            if self.how == "sleep":
                self.process.kill()
            self.process.join(LONG)
        except (AttributeError, ValueError, AssertionError):
            return None
        return self.process.exitcode if self.how != "sleep" else None


class Managers:
    """Objects of a manager."""

    def __init__(self, context: Any) -> None:
        self.context, self.manager = context, context.Manager()
        self.dict, self.list = self.manager.dict(a=1), self.manager.list([1, 2, 3])
        self.namespace, self.queue = self.manager.Namespace(x=1), self.manager.Queue(2)
        self.value, self.event, self.lock = self.manager.Value("i", 5), self.manager.Event(), self.manager.Lock()

    def step(self, name: str, method: str, *given: Any) -> Any:
        target = getattr(self, name)
        match method:
            case "set":
                return setattr(target, *given)
            case "read":
                return getattr(target, given[0])
            case "item":
                return target[given[0]]
            case "len":
                return len(target)
            case "in a process":
                process = self.context.Process(target=work.change, args=(target, *given))
                process.start()
                process.join()
                return target[given[0]]
        value = getattr(target, method)(*given)
        return sorted(value) if method in ("keys", "values", "items") else value

    def finish(self) -> Any:
        result = repr(sorted(self.dict.items(), key=repr)), repr(list(self.list))
        self.manager.shutdown()
        return result


class Executors:
    """A ProcessPoolExecutor."""

    def __init__(self, context: Any, workers: int, initializer: bool) -> None:
        init = {"initializer": work.initialize, "initargs": ("set",)} if initializer else {}
        self.executor = ProcessPoolExecutor(workers, context, **init)
        self.futures: list[Any] = []

    def step(self, name: str, *given: Any) -> Any:
        match name:
            case "submit":
                self.futures.append(self.executor.submit(getattr(work, given[0]), given[1]))
            case "result" if self.futures:
                return self.futures.pop(0).result(LONG)
            case "exception" if self.futures:
                return type(self.futures.pop(0).exception(LONG)).__name__
            case "map":
                function, count, chunk = given
                return list(self.executor.map(getattr(work, function), range(count), chunksize=chunk, timeout=LONG))
            case "wait":
                done, pending = wait(self.futures, LONG)
                return len(done), len(pending)
            case "as completed":
                return len(list(as_completed(self.futures, LONG)))
            case "shut down":
                self.executor.shutdown()
        return None

    def finish(self) -> Any:
        self.executor.shutdown()
        return [(future.done(), future.cancelled()) for future in self.futures]


class Memory:
    """Shared memory."""

    def __init__(self, context: Any, size: int) -> None:
        self.context = context
        self.memory = SharedMemory(create=True, size=size)
        self.list = ShareableList([1, 2.5, "text", None, True, b"bytes"])

    def step(self, name: str, *given: Any) -> Any:
        match name:
            case "write":
                self.memory.buf[given[0]] = given[1]
            case "read":
                return self.memory.buf[given[0]]
            case "edit in a process":
                process = self.context.Process(target=work.edit, args=(self.memory,))
                process.start()
                process.join()
                return process.exitcode, self.memory.buf[0]
            case "attach":
                other = SharedMemory(self.memory.name)
                value = other.buf[given[0]]
                other.close()
                return value
            case "set item":
                self.list[given[0]] = given[1]
            case "item":
                return self.list[given[0]]
            case "count":
                return self.list.count(given[0])
            case "index":
                return self.list.index(given[0])
        return None

    def finish(self) -> Any:
        value = repr(list(self.list))
        for each in (self.memory, self.list.shm):
            each.close()
            each.unlink()
        return value


KINDS: dict[str, Any] = {
    cls.__name__: cls for cls in (Pools, Queues, Pipes, Sync, Processes, Managers, Executors, Memory)
}


def run(context: Any, program: dict[str, Any]) -> list[Outcome]:
    """Run one program; if a step raises, the program continues with the next step."""
    made = KINDS[program["kind"]](context, *program["given"])
    outcomes = [outcome(lambda step=step: made.step(*step)) for step in program["steps"]]  # type: ignore[misc]
    return [*outcomes, outcome(made.finish)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "dragon":
        import dragon  # noqa: F401
    chosen = mp.get_context(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(run(chosen, json.loads(line))), flush=True)
