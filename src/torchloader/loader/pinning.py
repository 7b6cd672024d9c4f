"""Page-locked copies of batches, from which a GPU copies while the program continues."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Pinning", "pinner"]

Pin = Callable[[Any], Any]


def pinner() -> Pin | None:
    """Return the function that copies a batch into page-locked memory for the current GPU; None if PyTorch has no
    GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory


class Pinning:
    """Pins the batches of an iteration with `pin`; the next one in a thread while the program uses the current one."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._thread = ThreadPoolExecutor(1, "torchloader-pin", initializer=_use_same_gpu, initargs=(_current_gpu(),))
        self._next: tuple[int, Future[Any]] | None = None

    def begin(self, number: int, batch: Any) -> None:
        """Start to pin the batch of that number, which is used next."""
        self._next = number, self._thread.submit(self._pin, batch)

    @property
    def number(self) -> int | None:
        """The number of the batch that is being pinned ahead, or None."""
        return None if self._next is None else self._next[0]

    def pinned(self, number: int, batch: Any) -> Any:
        """Return the pinned batch of that number. Raises what pinning raises."""
        begun, self._next = self._next, None
        return begun[1].result() if begun is not None and begun[0] == number else self._pin(batch)

    def close(self) -> None:
        """End the thread; a batch that is being pinned is dropped."""
        self._thread.shutdown(wait=False)


def _current_gpu() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else None


def _use_same_gpu(index: int | None) -> None:
    if index is not None:
        sys.modules["torch"].cuda.set_device(index)
