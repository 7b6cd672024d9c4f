"""A process without a free descriptor cannot look whether another lives, and takes none for dead."""

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


def test_a_lock_whose_holder_lives_is_not_taken_and_the_run_has_not_ended(site: Site) -> None:
    done = site.python(PROGRAM)
    assert (done.stdout, done.stderr, done.returncode) == ("False\nempty\nTrue released\n", "", 0)
