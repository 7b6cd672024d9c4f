"""Three processes go through two phases together: nobody is in the second before all have ended the first."""

from dragon.native import Barrier, Process, Queue


def work(barrier, seen, rank):
    for phase in (1, 2):
        seen.put((phase, rank))
        barrier.wait()


if __name__ == "__main__":
    barrier, seen = Barrier(3), Queue()
    processes = [Process(work, (barrier, seen, rank)) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    phases = [seen.get()[0] for _ in range(6)]
    print(phases)
