"""Chooses the device of a rank, and the backend by which ranks exchange gradients."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous


def choose_device(device: str | torch.device | None, local_rank: int) -> torch.device:
    """Return the device of a rank. If it is a GPU, it becomes the current one.

    Args:
        device: the requested device; by default a GPU, or the CPU if there is none.
        local_rank: chooses the GPU if no index was requested; ranks share GPUs if there are more ranks.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def make_process_group(device: torch.device, backend: str | None) -> None:
    """Make PyTorch's default process group from torchrun's variables. Waits for all ranks.

    Without `backend` it is nccl if every rank has its own GPU, and gloo otherwise: on CPUs, and if ranks share a GPU,
    for which nccl fails with "Duplicate GPU detected".
    """
    if backend is not None or device.type != "cuda":
        dist.init_process_group(backend or "gloo")
        return
    store, rank, size = next(iter(rendezvous("env://")))
    store.set(f"torchloader/device/{rank}", _identity(device))
    devices = store.multi_get([f"torchloader/device/{each}" for each in range(size)])
    chosen = "nccl" if len(set(devices)) == size else "gloo"
    dist.init_process_group(chosen, store=store, rank=rank, world_size=size)


def _identity(device: torch.device) -> str:
    """Return a string that identifies a GPU among all nodes of the job; ranks may number the same one differently.

    Older releases of PyTorch do not provide a GPU's UUID: then it is its number among the visible ones.
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"{socket.gethostname()} {uuid or (os.environ.get('CUDA_VISIBLE_DEVICES'), device.index)}"
