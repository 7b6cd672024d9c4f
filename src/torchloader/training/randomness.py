"""The random state of a rank, in a form for checkpoints."""

from __future__ import annotations

import io
import random
import sys
from typing import Any

import torch
from torch import Tensor

__all__ = ["pack", "random_state", "set_random_state", "unpack"]


def random_state() -> dict[str, Any]:
    """Return the state of Python, NumPy if it is imported, PyTorch, and this process's GPU if it uses one."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "torch": torch.get_rng_state(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [kind, torch.tensor(keys.tolist(), dtype=torch.int64), position, has_gauss, cached]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a random state. Parts of modules that are not imported, or not used, are ignored."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(state["cuda"])


def pack(state: dict[str, Any]) -> Tensor:
    """Serialize a state to bytes that ranks can send to each other."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(data: Tensor) -> dict[str, Any]:
    """Deserialize what pack() returned. Executes no code from the data."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)  # type: ignore[no-any-return]
