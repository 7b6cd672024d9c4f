"""All descendants of a process end with it, in every process group and session."""

from __future__ import annotations

import random

import pytest

from conftest import Site

# Programs that tell others of their length in seconds; leave() starts some in all the ways there are.
_COMMON = """
import os, signal, subprocess, sys, time
import multiprocessing as mp
import dragon
from dragon.native.pool import Pool
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue
from dragon.workflows.batch import Batch

SECONDS = os.environ["SECONDS_OF_THIS"]
SLEEP = ["sleep", SECONDS]
DAEMON = f"setsid sh -c 'sleep {SECONDS} & sleep {SECONDS}' & (setsid sleep {SECONDS} &)"  # two of three lose parents
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(%s)"

def running():
    found = subprocess.run(["pgrep", "-f", f"(^|/)sleep {SECONDS}$"], capture_output=True, text=True).stdout.split()
    return len(found)

def until(count, within=30):
    deadline = time.monotonic() + within
    while running() != count and time.monotonic() < deadline:
        time.sleep(0.02)
    return running()

def leave():
    subprocess.Popen(SLEEP)
    subprocess.run(["sh", "-c", DAEMON])
    while running() < 4:
        time.sleep(0.02)

def leave_and_wait(queue=None):
    leave()
    if queue is not None:
        queue.put(os.getpid())
    time.sleep(1000)
"""


def program(body: str) -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return f"{_COMMON}\n\nif __name__ == '__main__':\n{lines}\n"


def lines(site: Site, body: str, *options: str) -> list[str]:
    path = site.write(program(body))
    seconds = str(random.randrange(10**6, 10**9))  # tells these from those of a test that runs at the same time
    ran = site.dragon(*options, path, env={"SECONDS_OF_THIS": seconds}, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("options", [(), ("--nodes", "2")])
def test_descendants_of_a_native_process_end_with_it(site: Site, options: tuple[str, ...]) -> None:
    body = """
queue = Queue()
for end in ("kill", "terminate"):
    process = Process(leave_and_wait, (queue,))
    process.start()
    queue.get()
    print(running())
    getattr(process, end)()
    process.join()
    print(until(0, 15))
process = Process(leave)
process.start()
process.join()
print(process.returncode, until(0, 15))
"""
    assert lines(site, body, *options) == ["4", "0", "4", "0", "0 0"]


def test_a_process_that_ignores_sigterm_is_killed(site: Site) -> None:
    body = """
code = f"subprocess.Popen([sys.executable, '-c', {IGNORES % SECONDS!r}], stdout=subprocess.PIPE).stdout.readline()"
process = Process(sys.executable, ["-c", "import subprocess, sys; " + code])
process.start()
process.join()
found = lambda: subprocess.run(["pgrep", "-f", f"time.sleep.{SECONDS}"], capture_output=True, text=True).stdout.split()
print(process.returncode, len(found()))
deadline = time.monotonic() + 30
while found() and time.monotonic() < deadline:
    time.sleep(0.1)
print(len(found()))
"""
    assert lines(site, body) == ["0 1", "0"]


def test_a_process_that_forks_while_it_is_killed_leaves_no_descendants(site: Site) -> None:
    chain = (
        "for i in range(8):\\n if not os.fork():\\n  while True:\\n   if os.fork(): os._exit(0)\\n   time.sleep(0.001)"
    )
    body = f"""
code = "import os, time, sys\\n{chain}\\ntime.sleep(1000) # {{SECONDS}}"
for _ in range(5):
    process = Process(sys.executable, ["-c", code])
    process.start()
    time.sleep(0.3)
    process.kill()
    process.join()
found = lambda: subprocess.run(["pgrep", "-f", f"# {{SECONDS}}"], capture_output=True, text=True).stdout.split()
deadline = time.monotonic() + 30
while len(found()) and time.monotonic() < deadline:
    time.sleep(0.1)
print(len(found()))
"""
    assert lines(site, body) == ["0"]


def test_descendants_of_the_members_of_a_group_end_with_it(site: Site) -> None:
    body = """
def group(**options):
    group = ProcessGroup(**options)
    group.add_process(1, ProcessTemplate(leave_and_wait))
    group.init()
    group.start()
    print(until(4))
    return group

one = group()
one.stop()
print(until(0, 15))
one.close()
two = group()
two.kill()
two.join()
print(until(0, 15))
two.close()
three = group(walltime=4)
three.join()
print(until(0, 15))
three.close()
"""
    ran = lines(site, body)
    assert ran == ["4", "0"] * 3


@pytest.mark.parametrize("options", [(), ("--nodes", "2")])
def test_processes_of_a_nested_group_end_with_their_creator(site: Site, options: tuple[str, ...]) -> None:
    body = """
def nested(queue):
    mp.set_start_method("dragon", force=True)
    group = ProcessGroup(restart=True)
    group.add_process(2, ProcessTemplate("sleep", [SECONDS]))
    group.init()
    group.start()
    processes = [Process("sleep", [SECONDS]) for _ in range(2)]
    for process in processes:
        process.start()
    child = mp.Process(target=leave_and_wait)
    child.start()
    queue.put(until(8))
    time.sleep(1000)

queue = Queue()
process = Process(nested, (queue,))
process.start()
print(queue.get())
process.kill()
process.join()
print(until(0, 15))
"""
    assert lines(site, body, *options) == ["8", "0"]


def test_descendants_of_the_workers_of_a_pool_end_with_it(site: Site) -> None:
    body = """
mp.set_start_method("dragon")
with mp.Pool(1) as pool:
    pool.apply(leave)
    print(running())
pool.join()
print(until(0, 15))
pool = Pool(1)
pool.apply(leave)
print(running())
pool.terminate()
pool.join()
print(until(0, 15))
"""
    assert lines(site, body) == ["4", "0", "4", "0"]


def test_descendants_of_a_multiprocessing_process_survive_it_as_in_the_standard_library(site: Site) -> None:
    body = """
mp.set_start_method("dragon")
queue = mp.Queue()
process = mp.Process(target=leave_and_wait, args=(queue,))
process.start()
queue.get()
process.terminate()
process.join()
other = Process("true")  # the end of another one is not theirs
other.start()
other.join()
time.sleep(0.5)
print(process.exitcode, running())
"""
    assert lines(site, body) == ["-15 4"]


def test_leave_running_keeps_the_descendants_of_a_process(site: Site) -> None:
    body = """
for template in (ProcessTemplate(leave, leave_running=True), ):
    process = Process.from_template(ProcessTemplate.from_sdict(template.get_sdict()))
    process.start()
    process.join()
time.sleep(0.5)
print(running())
"""
    assert lines(site, body) == ["4"]


@pytest.mark.parametrize("options", [(), ("--nodes", "2")])
def test_descendants_of_the_tasks_of_a_batch_end_with_them_or_with_the_batch(
    site: Site, options: tuple[str, ...]
) -> None:
    body = """
with Batch(workers_per_node=1) as batch:
    options = batch.options(timeout=3, pmi=None)
    template = ProcessTemplate(leave_and_wait)
    for submit in (lambda: options.function(leave_and_wait), lambda: options.process(template),
                   lambda: options.job([(1, template)])):
        try:
            submit().get()
        except TimeoutError:
            print("timed out", until(0, 15))
    cancelled = batch.function(leave_and_wait)
    while running() < 4:
        time.sleep(0.02)
    cancelled.cancel()
    print("cancelled", until(0, 15))
    batch.function(leave).get()
    print("returned", running())
    batch.options(leave_running=True).function(leave).get()
    print("left", running())
    batch.function(int).get()
    print("still there", running())
print("ended", until(0, 15))
"""
    expected = ["timed out 0"] * 3 + ["cancelled 0", "returned 0", "left 4", "still there 4", "ended 0"]
    assert lines(site, body, *options) == expected


def test_descendants_of_the_members_of_a_failed_group_end_with_it(site: Site) -> None:
    body = """
group = ProcessGroup()
group.add_process(1, ProcessTemplate(leave_and_wait))
waits = f"while [ $(pgrep -cf '^sleep {SECONDS}$') -lt 4 ]; do :; done; exit 3"
group.add_process(1, ProcessTemplate("sh", ["-c", waits]))
group.init()
group.start()
try:
    group.join()
except Exception as error:
    print(type(error).__name__, until(0, 15))
group.close()
"""
    assert lines(site, body) == ["DragonUserCodeError 0"]
