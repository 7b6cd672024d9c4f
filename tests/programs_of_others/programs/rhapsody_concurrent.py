"""rhapsody: functions and programs of its concurrent back end, in processes of the runtime."""

import asyncio
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

from rhapsody.api import ComputeTask, Session
from rhapsody.backends import ConcurrentExecutionBackend

import dragon  # noqa: F401


async def square(number):
    return number**2


async def main():
    executor = ProcessPoolExecutor(2, mp_context=mp.get_context("dragon"))
    backend = await ConcurrentExecutionBackend(executor)
    async with Session(backends=[backend]) as session:
        functions = [ComputeTask(function=square, args=[n]) for n in range(8)]
        programs = [ComputeTask(executable="/bin/echo", arguments=[str(n)]) for n in range(4)]
        failing = ComputeTask(executable="/bin/sh", arguments=["-c", "exit 3"])
        futures = await session.submit_tasks([*functions, *programs, failing])
        await asyncio.gather(*futures, return_exceptions=True)
        assert [task["return_value"] for task in functions] == [n**2 for n in range(8)]
        assert [task["stdout"].strip() for task in programs] == ["0", "1", "2", "3"]
        assert failing["exit_code"] == 3
    print("tasks done")


if __name__ == "__main__":
    asyncio.run(main())
