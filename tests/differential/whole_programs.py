"""Whole programs: how they are started, what they make, and how they end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["WholeProgram", "all_programs", "drawn"]

# What a program does before it ends; {} is replaced by an indented block.
DEEDS = {
    "nothing": "",
    "pool left open": "pool = mp.Pool(2); print(pool.map(double, range(4)))",
    "pool with unread results": "pool = mp.Pool(2); results = pool.imap(double, range(50)); print(next(results))",
    "pool closed": "pool = mp.Pool(2); result = pool.map_async(double, range(9)); pool.close(); print(result.get())",
    "initializer": "pool = mp.Pool(1, set_up, ('set',)); print(pool.map(seen, range(2))); pool.terminate()",
    "executor": "e = ProcessPoolExecutor(2, mp.get_context(METHOD)); print(list(e.map(double, range(4))))",
    "child": "mp.Process(target=late).start(); print('started')",
    "daemon child": "mp.Process(target=for_ever, daemon=True).start(); print('started')",
    "grandchild": "mp.Process(target=parent_of_late).start(); print('started')",
    "children that exchange": (
        "queue = mp.Queue(); ps = [mp.Process(target=queue.put, args=(i,)) for i in range(3)]; "
        "[p.start() for p in ps]; print(sorted(queue.get() for p in ps)); [p.join() for p in ps]"
    ),
    "full queue": "queue = mp.Queue(); queue.put(1); queue.put('x' * 10); print(queue.get())",
    "manager": "manager = mp.Manager(); d = manager.dict(); d['k'] = 1; print(dict(d))",
    "pipe": "a, b = mp.Pipe(); a.send([1]); print(b.recv())",
    "daemon thread waits": "q = mp.Queue(); threading.Thread(target=q.get, daemon=True).start(); print('waits')",
    "thread works": "threading.Thread(target=late_thread).start(); print('started')",
    "failed child": "p = mp.Process(target=quiet_exit, args=(4,)); p.start(); p.join(); print(p.exitcode)",
    "event": "event = mp.Event(); p = mp.Process(target=event.set); p.start(); print(event.wait(20)); p.join()",
    "value": "v = mp.Value('i', 0); ps = [mp.Process(target=add, args=(v,)) for _ in range(2)]; "
    "[p.start() for p in ps]; [p.join() for p in ps]; print(v.value)",
}
REGISTERED = {
    "nothing": "",
    "handler": "atexit.register(print, 'exit handler')",
    "handler with a queue": "atexit.register(use_queue)",
    "finalizer": "weakref.finalize(keeper, print, 'finalizer')",
    "object": "keeper.self_made = Deleted()",
}
ENDS = {
    "return": "",
    "exit 0": "sys.exit()",
    "exit 7": "sys.exit(7)",
    "exit text": "sys.exit('the text')",
    "raise": "raise ValueError('the end')",
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
}
FORMS = ("guarded", "function", "bare", "-c", "stdin")

_HEAD = """
import atexit, multiprocessing as mp, os, signal, sys, threading, time, weakref
from concurrent.futures import ProcessPoolExecutor
{imports}
METHOD = {method!r}
loaded = None

def double(x): return 2 * x
def set_up(value):
    global loaded
    loaded = value
def seen(_): return loaded
def late():
    time.sleep(0.3)
    print('late child', flush=True)
def parent_of_late():
    mp.Process(target=late).start()
def late_thread():
    time.sleep(0.2)
    print('late thread', flush=True)
def for_ever(): time.sleep(60)
def quiet_exit(code): sys.exit(code)
def add(value):
    for _ in range(50):
        with value.get_lock():
            value.value += 1
def use_queue():
    queue = mp.Queue()
    queue.put('in a handler')
    print(queue.get())
class Deleted:
    def __del__(self): print('deleted', double(1))
class Keeper: pass
"""
_BODY = """
mp.set_start_method(METHOD)
keeper = Keeper()
{registered}
{deed}
sys.stdout.flush()
{end}
"""


@dataclass(frozen=True)
class WholeProgram:
    """One program; text() gives its source for a start method."""

    form: str
    deed: str
    registered: str
    end: str

    def text(self, method: str) -> str:
        """The program's source."""
        imports = "import dragon" if method == "dragon" else ""
        head = _HEAD.format(imports=imports, method=method)
        body = _BODY.format(registered=REGISTERED[self.registered], deed=DEEDS[self.deed], end=ENDS[self.end])
        indented = "".join(f"    {line}\n" for line in body.splitlines())
        if self.form == "guarded":
            return f"{head}\nif __name__ == '__main__':\n{indented}"
        if self.form == "function":
            return f"{head}\ndef main():\n{indented}\nif __name__ == '__main__':\n    main()\n"
        return head + body


def all_programs() -> Iterator[WholeProgram]:
    """Return every combination."""
    for form, deed, registered, end in itertools.product(FORMS, DEEDS, REGISTERED, ENDS):
        yield WholeProgram(form, deed, registered, end)


def drawn(count: int, seed: int) -> list[WholeProgram]:
    """Return a random selection of `count` programs."""
    return random.Random(seed).sample(list(all_programs()), count)
