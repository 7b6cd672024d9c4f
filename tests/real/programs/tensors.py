"""torch tensors through queues: equal, writable where they arrive, and shared where they are in shared memory."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch

import dragon  # noqa: F401 - makes "dragon" a start method


def double(incoming: Any, outgoing: Any) -> None:
    while (tensor := incoming.get()) is not None:
        tensor *= 2  # where it is
        outgoing.put(tensor)


def samples() -> list[torch.Tensor]:
    return [
        torch.arange(10),
        torch.arange(1_000_000, dtype=torch.float32).reshape(1000, 1000),
        torch.arange(24).reshape(2, 3, 4)[:, ::2, 1:],
        torch.arange(4, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        torch.tensor(7),
        torch.tensor([True, False]),
        torch.ones(3, requires_grad=True),
    ]


def main() -> None:
    tensors = samples()
    multiprocessing.set_start_method("dragon")
    queue, results = multiprocessing.Queue(), multiprocessing.Queue()
    for tensor in tensors:
        queue.put(tensor)
        received = queue.get()
        assert received.dtype == tensor.dtype
        assert received.requires_grad == tensor.requires_grad
        assert torch.equal(received, tensor)
        with torch.no_grad():
            received.fill_(1)
    assert torch.equal(tensors[0], torch.arange(10))
    model = torch.nn.Linear(3, 3)
    queue.put(model)
    assert torch.equal(queue.get().weight, model.weight)
    assert not model.weight.is_shared()  # it was copied, as tensors are
    process = multiprocessing.Process(target=double, args=(queue, results))
    process.start()
    for tensor in tensors[:3]:
        queue.put(tensor)
        assert torch.equal(results.get(), tensor * 2)
    shared = torch.ones(100).share_memory_()
    queue.put(shared)
    assert torch.equal(results.get(), torch.full((100,), 2.0))
    assert torch.equal(shared, torch.full((100,), 2.0))
    queue.put(None)
    process.join()
    assert process.exitcode == 0
    print("ok")


if __name__ == "__main__":
    main()
