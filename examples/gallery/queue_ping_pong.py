"""Two processes that answer each other through two queues."""

from dragon.native import Process, Queue


def answer(pings, pongs):
    for ping in iter(pings.get, None):
        pongs.put(f"{ping}, pong")


if __name__ == "__main__":
    pings, pongs = Queue(), Queue()
    process = Process(answer, (pings, pongs))
    process.start()
    for number in range(3):
        pings.put(f"ping {number}")
        print(pongs.get())
    pings.put(None)
    process.join()
