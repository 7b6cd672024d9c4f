"""A thousand tasks wait for messages at once, without a thread for each."""

import asyncio

from dragon import aio
from dragon.native import Process, Queue


def feed(queue):
    for number in range(1000):
        queue.put(number)


async def main():
    queue = Queue(0)
    waiting = [asyncio.create_task(aio.Queue(queue).get()) for _ in range(1000)]
    await asyncio.sleep(0)
    process = Process(feed, (queue,))
    process.start()
    print("sum:", sum(await asyncio.gather(*waiting)))
    await aio.join(process)


if __name__ == "__main__":
    asyncio.run(main())
