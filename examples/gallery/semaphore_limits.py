"""At most two of six processes are in the section at a time."""

import time

from dragon.native import Lock, Process, Semaphore, Value


def enter(places, lock, inside, most):
    with places:
        with lock:
            inside.value += 1
            most.value = max(most.value, inside.value)
        time.sleep(0.02)
        with lock:
            inside.value -= 1


if __name__ == "__main__":
    places, lock, inside, most = Semaphore(2), Lock(), Value("i", 0), Value("i", 0)
    processes = [Process(enter, (places, lock, inside, most)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print("never more than two:", most.value <= 2)
