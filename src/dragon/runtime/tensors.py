"""Pickles tensors of PyTorch.

Tensors are copied once, into the message. Those in shared memory or on a GPU are shared by torch's own reducers, whose
result one process can use once and while the sender lives; lasting bytes contain a copy instead.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any


def reduce_of_torch(obj: Any, lasting: bool, reducers: Mapping[type, Any]) -> Any:
    """Return the reduction of a tensor or storage of torch; NotImplemented for another object, and if torch's own is to
    be used. `reducers` has torch's reducers by type."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return NotImplemented
    if isinstance(obj, torch.Tensor):
        return _reduce_tensor(obj, lasting)
    if isinstance(obj, torch.TypedStorage):
        memory = obj._untyped_storage  # the methods of TypedStorage issue a warning
        return NotImplemented if not lasting and _is_shared(memory) else obj.__reduce_ex__(5)
    if isinstance(obj, torch.UntypedStorage) and not lasting and type(obj) in reducers:
        return _receive, (os.getpid(), *reducers[type(obj)](obj))
    return NotImplemented


def _is_shared(memory: Any) -> bool:
    return memory.device.type != "cpu" or bool(memory.is_shared())


def _receive(sender: int, rebuild: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the shared memory that process `sender` offers. Raises OSError or EOFError, with a note, if it does not
    exist any more or is on another node."""
    try:
        return rebuild(*args)
    except (OSError, EOFError) as error:
        error.add_note(
            f"A tensor in shared memory could not be received from process {sender}: it must be on this node and must "
            "not end before the tensor has been received. Send a copy instead: tensor.clone()."
        )
        raise


def _reduce_tensor(tensor: Any, lasting: bool) -> Any:
    import torch

    if tensor.requires_grad and not tensor.is_leaf:
        return NotImplemented  # torch raises an error with the reason
    has_storage = tensor.layout == torch.strided
    if has_storage and not lasting and _is_shared(tensor):
        return NotImplemented
    if type(tensor) is not torch.Tensor or not has_storage or tensor.device.type != "cpu" or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    whole: Any = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = pickle.PickleBuffer(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""
    return _rebuild_tensor, (data, str(whole.dtype), tuple(whole.shape), tensor.requires_grad)


def _rebuild_tensor(data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    if len(memoryview(data)) == 0:
        return torch.empty(shape, dtype=kind, requires_grad=requires_grad)
    if memoryview(data).readonly:
        data = bytearray(data)
    flat = torch.frombuffer(data, dtype=kind)
    return flat.reshape(shape).requires_grad_(requires_grad)
