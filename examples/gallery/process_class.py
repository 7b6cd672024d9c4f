"""A class derived from multiprocessing.Process, as libraries have them."""

import multiprocessing as mp

import dragon


class Counter(mp.Process):
    def __init__(self, queue, until):
        super().__init__(name=f"counter-{until}")
        self.queue, self.until = queue, until

    def run(self):
        self.queue.put((self.name, sum(range(self.until))))


if __name__ == "__main__":
    mp.set_start_method("dragon")
    queue = mp.Queue()
    counters = [Counter(queue, until) for until in (10, 100, 1000)]
    for counter in counters:
        counter.start()
    for name, total in sorted(queue.get() for _ in counters):
        print(name, total)
    for counter in counters:
        counter.join()
