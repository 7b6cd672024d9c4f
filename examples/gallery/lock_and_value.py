"""A counter that four processes raise, under a lock."""

from dragon.native import Lock, Process, Value


def count(lock, value):
    for _ in range(250):
        with lock:
            value.value += 1


if __name__ == "__main__":
    lock, value = Lock(), Value("i", 0)
    processes = [Process(count, (lock, value)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(value.value)
