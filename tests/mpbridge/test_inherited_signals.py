"""Processes inherit ignored, default and blocked signals from their creator, but not handlers written in Python."""

from __future__ import annotations

import signal
import sys

import pytest

from conftest import Site

_PROGRAM = """
import multiprocessing as mp, signal, sys, threading
import dragon
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue
%s

LOOKED_AT = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR1)

def look():
    names = {signal.SIG_IGN: "ignored", signal.SIG_DFL: "default", signal.default_int_handler: "python"}
    blocked = sorted(number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    return " ".join(names[signal.getsignal(number)] for number in LOOKED_AT) + f" blocked {blocked}"

def tell(queue):
    queue.put(look())

def change():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *args: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

def back():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])

def start_all(queue):
    pool = mp.Pool(2)
    group = ProcessGroup()
    group.add_process(2, ProcessTemplate(tell, (queue,)))
    group.init()
    group.start()
    started = [mp.Process(target=tell, args=(queue,)), Process(tell, (queue,))]
    for process in started:
        process.start()
    return pool, group, started

if __name__ == "__main__":
    mp.set_start_method("dragon")
    queue = Queue()
    for prepare in (back, change, back):
        prepare()
        pool, group, started = start_all(queue)
        back()
        found = {pool.apply(look), *(queue.get() for _ in range(4))}
        print(*found, sep="\\n")
        pool.terminate()
        group.join()
        group.close()
        for process in started:
            process.join()
"""
# Threads that outlive a fork, so that fresh interpreters are started.
_THREADS = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.mark.parametrize("options", [(), ("--nodes", "2")])
@pytest.mark.parametrize("preparation", ["", _THREADS], ids=["forked", "fresh"])
def test_processes_inherit_ignored_and_blocked_signals(site: Site, preparation: str, options: tuple[str, ...]) -> None:
    usual = "python default ignored default default blocked []"
    changed = "ignored default default default ignored blocked ['SIGUSR2']"
    ran = site.dragon(*options, site.write(_PROGRAM % preparation), timeout=120)
    assert ran.stdout.splitlines() == [usual, changed, usual], ran.stderr


def test_executables_inherit_ignored_signals_except_those_that_python_ignores(site: Site) -> None:
    ran = site.python("""
        import signal, subprocess
        from dragon.native.process import Process

        status = ["-h", "SigIgn", "/proc/self/status"]
        print("of any other", *subprocess.check_output(["grep", *status], text=True).split())
        Process("grep", status).start()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        process = Process("grep", status)
        process.start()
        process.join()
    """)
    usual, *found = sorted(int(line.split()[-1], 16) for line in ran.stdout.splitlines())
    assert found == [usual, usual | 1 << signal.SIGUSR1 - 1]


def test_processes_of_a_program_under_nohup_ignore_sighup(site: Site) -> None:
    program = site.write("""
        import multiprocessing as mp, signal
        import dragon

        def look(_):
            return signal.getsignal(signal.SIGHUP).name

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(1) as pool:
                print(look(0), *pool.map(look, [0]))
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            with mp.Pool(1) as pool:
                print(look(0), *pool.map(look, [0]))
    """)
    for options in ([], ["--nodes", "2"]):
        command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, "-m", "dragon", *options]
        ran = site.run(*command, program)
        assert ran.stdout.splitlines() == ["SIG_IGN SIG_IGN", "SIG_DFL SIG_DFL"], ran.stderr
