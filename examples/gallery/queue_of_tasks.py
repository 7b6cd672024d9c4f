"""A joinable queue: join() waits until everything that was put is done."""

from dragon.native import Lock, Process, Queue, Value


def work(tasks, total, lock):
    while (task := tasks.get()) is not None:
        with lock:
            total.value += task
        tasks.task_done()


if __name__ == "__main__":
    tasks, total, lock = Queue(joinable=True), Value("i", 0), Lock()
    workers = [Process(work, (tasks, total, lock)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for task in range(101):
        tasks.put(task)
    tasks.join()
    print("done, the sum is", total.value)
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join()
