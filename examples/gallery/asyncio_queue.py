"""Await a queue, a process and results of a pool in an event loop."""

import asyncio

from dragon import aio
from dragon.native import Pool, Process, Queue


def square(number):
    return number**2


def work(questions, answers):
    for question in iter(questions.get, None):
        answers.put(square(question))


async def main():
    questions, answers = Queue(), Queue()
    process = Process(work, (questions, answers))
    process.start()
    for number in range(3):
        await aio.Queue(questions).put(number)
        print(await aio.Queue(answers).get())
    await aio.Queue(questions).put(None)
    print("exit code", await aio.join(process))
    with Pool(2) as pool:
        print(await aio.result(pool.map_async(square, range(5))))


if __name__ == "__main__":
    asyncio.run(main())
