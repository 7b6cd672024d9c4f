"""When which worker had which task: the tasks tell, and the program draws it."""

import os
import time

from dragon.native import Pool


def task(seconds):
    begin = time.time()
    time.sleep(seconds)
    return os.getpid(), begin, time.time()


if __name__ == "__main__":
    import matplotlib.pyplot as plt  # only this process draws

    durations = [0.05 * (1 + number % 4) for number in range(16)]
    with Pool(4) as pool:
        spans = pool.map(task, durations, chunksize=1)
    start, workers = min(begin for _, begin, _ in spans), sorted({pid for pid, _, _ in spans})
    plt.figure(figsize=(6, 3), dpi=80)
    for pid, begin, end in spans:
        plt.barh(workers.index(pid), end - begin, left=begin - start, edgecolor="white", color="tab:blue")
    plt.xlabel("seconds")
    plt.ylabel("worker")
    plt.tight_layout()
    plt.savefig("timeline.png")
    print(len(spans), "tasks, side by side:", max(end for _, _, end in spans) - start < sum(durations))
