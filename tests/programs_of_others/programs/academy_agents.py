"""Academy: agents in processes of an executor that exchange messages through an exchange."""

import asyncio
import logging
import multiprocessing as mp
import os
import socket
from concurrent.futures import ProcessPoolExecutor

from academy.agent import Agent, action
from academy.exchange.cloud.client import spawn_http_exchange
from academy.manager import Manager

import dragon  # noqa: F401


class Lowerer(Agent):
    @action
    async def lower(self, text):
        return text.lower(), os.getpid()


class Coordinator(Agent):
    def __init__(self, lowerer):
        super().__init__()
        self.lowerer = lowerer

    @action
    async def process(self, text):
        lowered, pid = await self.lowerer.lower(text)
        return lowered + "!", {pid, os.getpid()}


async def main():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with spawn_http_exchange("127.0.0.1", port, level=logging.ERROR) as factory:
        executor = ProcessPoolExecutor(3, mp_context=mp.get_context("dragon"))
        async with await Manager.from_exchange_factory(factory=factory, executors=executor) as manager:
            lowerer = await manager.launch(Lowerer)
            coordinator = await manager.launch(Coordinator, args=(lowerer,))
            text, pids = await coordinator.process("HELLO")
            assert text == "hello!"
            assert len(pids) == 2
            assert os.getpid() not in pids
            print("agents done")
            await manager.shutdown(coordinator, blocking=True)
            await manager.shutdown(lowerer, blocking=True)
    print("exchange done")


if __name__ == "__main__":
    asyncio.run(main())
