"""rhapsody: functions, programs, jobs and failures on its back end for dragon."""

import asyncio

from rhapsody.api import ComputeTask, Session
from rhapsody.backends.execution.dragon import DragonExecutionBackend


async def double(number):
    return 2 * number


def square(number):
    return number**2


def fail():
    raise ValueError("on purpose")


async def main():
    backend = await DragonExecutionBackend()
    async with Session(backends=[backend]) as session:
        functions = [ComputeTask(function=square, args=[n]) for n in range(8)]
        coroutine = ComputeTask(function=double, args=[21])
        programs = [ComputeTask(executable="/bin/echo", arguments=[f"program {n}"]) for n in range(4)]
        kept = ComputeTask(executable="/bin/echo", arguments=["kept"], capture_stdio=True)
        single = ComputeTask(executable="/bin/pwd", task_backend_specific_kwargs={"process_template": {"cwd": "/tmp"}})
        job = ComputeTask(
            executable="/bin/echo",
            arguments=["rank"],
            task_backend_specific_kwargs={"process_templates": [(2, {}), (1, {})]},
        )
        good = [*functions, coroutine, *programs, kept, single, job]
        await asyncio.gather(*await session.submit_tasks(good))
        assert [task["return_value"] for task in functions] == [n**2 for n in range(8)]
        assert coroutine["return_value"] == 42
        assert [task["stdout"].strip() for task in programs] == [f"program {n}" for n in range(4)]
        with open(kept["stdout"]) as file:
            assert file.read() == "kept\n"
        assert single["stdout"] == "/tmp\n"
        assert job["stdout"].count("rank") == 3
        print("tasks done")
        raising = ComputeTask(function=fail)
        exits = ComputeTask(executable="/bin/sh", arguments=["-c", "echo why >&2; exit 3"])
        missing = ComputeTask(executable="/no/such/program")
        futures = await session.submit_tasks([raising, exits, missing])
        await session.wait_tasks([raising, exits, missing])
        assert [task["state"] for task in (raising, exits, missing)] == ["FAILED"] * 3
        assert isinstance(raising["exception"], ValueError)
        assert "why" in exits["stderr"]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [ValueError, SystemExit, AttributeError]
        print("failures done")


if __name__ == "__main__":
    asyncio.run(main())
