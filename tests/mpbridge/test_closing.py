"""Closed queues and the end of processes, in cases that CPython's own tests of Python 3.11 do not cover."""

from __future__ import annotations

import errno
import multiprocessing as mp
import os
import signal
import sys
import time
from typing import Any

import pytest

import dragon  # noqa: F401 - makes "dragon" a start method
from conftest import Site


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_empty_of_a_closed_queue_raises_os_error(kind: str) -> None:
    queue = getattr(mp.get_context("dragon"), kind)()
    queue.put("foo")
    assert not queue.empty()
    queue.close()
    with pytest.raises(OSError, match="is closed"):
        queue.empty()


def test_a_broken_pipe_has_the_number_and_the_text_of_the_system() -> None:
    reader, writer = mp.get_context("dragon").Pipe(duplex=False)
    reader.close()
    with pytest.raises(BrokenPipeError) as raised:
        writer.send(1)
    assert (raised.value.errno, raised.value.strerror) == (errno.EPIPE, os.strerror(errno.EPIPE))


def heed_no_signal(ready: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.put("ready")
    time.sleep(60)


def test_terminating_a_pool_does_not_wait_long_for_a_task_that_ignores_sigterm() -> None:
    context = mp.get_context("dragon")
    ready = context.SimpleQueue()
    pool = context.Pool(1)
    pool.apply_async(heed_no_signal, (ready,))
    ready.get()
    begun = time.monotonic()
    pool.terminate()
    pool.join()
    assert time.monotonic() - begun < 20


@pytest.mark.skipif(sys.version_info < (3, 13), reason="multiprocessing runs them from Python 3.13 on")
def test_the_exit_handlers_of_a_process_are_called(site: Site) -> None:
    source = """
        import atexit
        import multiprocessing as mp
        import dragon

        def work():
            atexit.register(print, "process")

        if __name__ == "__main__":
            process = mp.get_context("dragon").Process(target=work)
            process.start()
            process.join()
    """
    done = site.python(source)
    assert (done.stdout, done.stderr) == ("process\n", "")


def test_a_process_joins_its_children_runs_finalizers_and_removes_its_temporary_folder(site: Site) -> None:
    source = """
        import multiprocessing as mp
        import os
        import time
        from multiprocessing.util import Finalize, get_temp_dir
        import dragon

        def rest():
            time.sleep(0.5)
            print("its own process", flush=True)

        def work(folders):
            folders.put(get_temp_dir())
            Finalize(None, print, ("its finalizer",), exitpriority=-200)
            mp.get_context("dragon").Process(target=rest).start()

        if __name__ == "__main__":
            context = mp.get_context("dragon")
            folders = context.Queue()
            process = context.Process(target=work, args=(folders,))
            process.start()
            process.join()
            print(os.path.exists(folders.get()))
    """
    done = site.python(source)
    assert (done.stdout, done.stderr) == ("its own process\nits finalizer\nFalse\n", "")


@pytest.mark.parametrize("options", [[], ["-m", "dragon", "--nodes", "2"]])
def test_a_closed_joinable_queue_can_be_joined(site: Site, options: list[str]) -> None:
    program = site.write("""
        import multiprocessing as mp
        import dragon

        def work(queue):
            for _ in range(3):
                queue.get()
                queue.task_done()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.JoinableQueue()
            workers = [mp.Process(target=work, args=(queue,)) for _ in range(2)]
            for worker in workers:
                worker.start()
            for number in range(7):
                queue.put(number)
            queue.get()
            queue.close()
            queue.task_done()
            queue.join()
            print("all done")
            for worker in workers:
                worker.join()
            try:
                queue.task_done()
            except ValueError as error:
                print(error)
    """)
    done = site.run(sys.executable, *options, program)
    assert (done.stdout, done.stderr) == ("all done\ntask_done() called too many times\n", "")
