"""An event that lets all waiting processes go at once."""

from dragon.native import Event, Process, Queue


def run(ready, go, results, rank):
    ready.put(rank)
    go.wait()
    results.put(rank)


if __name__ == "__main__":
    ready, go, results = Queue(), Event(), Queue()
    runners = [Process(run, (ready, go, results, rank)) for rank in range(4)]
    for runner in runners:
        runner.start()
    print("ready:", sorted(ready.get() for _ in runners), "running:", results.qsize())
    go.set()
    print("arrived:", sorted(results.get() for _ in runners))
    for runner in runners:
        runner.join()
