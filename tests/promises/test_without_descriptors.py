"""Processes and agents without free descriptors: they do not take a live process for dead, and continue later."""

from __future__ import annotations

from conftest import Site

PROGRAM = """
    import multiprocessing as mp, os, queue, resource, time
    import dragon

    def hold(lock, box):
        with lock:
            box.put("held")
            time.sleep(4)
        box.put("released")

    def use_all_descriptors():
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        kept = []
        try:
            while True:
                kept.append(os.dup(0))
        except OSError:
            return kept

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        lock, box, empty = mp.Lock(), mp.Queue(), mp.Queue()
        process = mp.Process(target=hold, args=(lock, box))
        process.start()
        assert box.get(timeout=30) == "held"
        kept = use_all_descriptors()
        print(lock.acquire(timeout=1.5))
        try:
            empty.get(timeout=1.5)
        except queue.Empty:
            print("empty")
        print(lock.acquire(timeout=30), box.get(timeout=30))
        for descriptor in kept:
            os.close(descriptor)
        process.join()
"""


def test_a_process_without_descriptors_does_not_take_a_lock_from_a_live_holder(site: Site) -> None:
    done = site.python(PROGRAM)
    assert (done.stdout, done.stderr, done.returncode) == ("False\nempty\nTrue released\n", "", 0)


def test_an_agent_without_descriptors_lets_processes_wait_with_one_warning(site: Site) -> None:
    done = site.dragon(
        site.write("""
        import os, resource, socket, time
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.native.queue import Queue
        from dragon.runtime.run import this_run

        group = ProcessGroup()
        group.add_process(1, ProcessTemplate("true"))
        group.init()
        group.start()
        group.join()
        group.close()  # the agent has answered, so it has imported all that it needs
        queue, run = Queue(), this_run()
        used = set(map(int, os.listdir(f"/proc/{run.agent.pid}/fd")))
        free = next(number for number in range(2**20) if number not in used)
        before = resource.prlimit(run.agent.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(run.agent.pid, resource.RLIMIT_NOFILE, (free, before[1]))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as another:
            another.connect(str(run.folder / "agent"))
            time.sleep(2)
        resource.prlimit(run.agent.pid, resource.RLIMIT_NOFILE, before)
        queue.put("goes on")
        print(queue.get())
        """)
    )
    assert done.stdout == "goes on\n"
    assert done.stderr.count("\n") == 1, done.stderr[:2000]
    assert "processes wait until the agent can accept them: Too many open files (ulimit -n" in done.stderr
