"""Saves and restores the random state of the user's sampler, and checks that it gives the same samples again."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from torchloader.loader.randomness import number_of
from torchloader.loader.ranks import distributed_rank

__all__ = ["digest", "rank_of", "restore", "state_of"]

_DEEPEST = 4


def digest(indices: Iterable[Any], before: int = 0) -> int:
    """Return a checksum of samples in their order, continued from `before`, the checksum of the preceding samples."""
    return zlib.crc32(b"".join(b"%d," % number_of(index) for index in indices), before)


def state_of(sampler: Any) -> dict[str, Any]:
    """Return the states of a sampler's generators, including nested ones, and the epochs that it was set to,
    for JSON."""
    return {path: held.epoch if path.endswith(".epoch") else _state(held) for path, held in _sources(sampler)}


def restore(sampler: Any, state: dict[str, Any]) -> None:
    """Restore what state_of() returned. Raises ValueError for the state of another kind of sampler."""
    sources = dict(_sources(sampler))
    if sources.keys() != state.keys():
        raise ValueError(
            f"the state is of a sampler with {sorted(state)}, this one has {sorted(sources)}: give the loader the "
            "sampler that it had"
        )
    for path, held in sources.items():
        if path.endswith(".epoch"):
            held.set_epoch(state[path])
        else:
            _set_state(held, state[path])


def rank_of(sampler: Any) -> int:
    """Return the rank whose samples a sampler gives: the attribute `rank` of it or of a nested sampler, or else the
    rank in torch.distributed."""
    ranks = (one.rank for _, one in _samplers(sampler, "sampler", 0) if isinstance(vars(one).get("rank"), int))
    return next(ranks, distributed_rank())


def _samplers(sampler: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the path and object of a sampler and of those in its attributes."""
    fields = getattr(sampler, "__dict__", None)
    if not isinstance(fields, dict) or depth > _DEEPEST:
        return
    yield path, sampler
    for name, value in sorted(fields.items()):
        if not _is_generator(value) and hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
            yield from _samplers(value, f"{path}.{name}", depth + 1)


def _sources(sampler: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and object of each generator, and of each sampler with an epoch."""
    for path, one in _samplers(sampler, "sampler", 0):
        if hasattr(one, "set_epoch") and isinstance(vars(one).get("epoch"), int):
            yield f"{path}.epoch", one
        for name, value in sorted(vars(one).items()):
            if _is_generator(value):
                yield f"{path}.{name}", value


def _is_generator(value: Any) -> bool:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        isinstance(value, random.Random)
        or (torch is not None and isinstance(value, torch.Generator))
        or (numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState)))
    )


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return [version, list(words), gauss]
    if hasattr(generator, "bit_generator"):
        return _plain(generator.bit_generator.state)
    state = generator.get_state()
    if isinstance(state, tuple):  # of numpy.random.RandomState
        name, words, *others = state
        return [name, words.tolist(), *others]
    return state.numpy().tobytes().hex()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        version, words, gauss = state
        generator.setstate((version, tuple(words), gauss))
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif isinstance(state, str):
        torch = sys.modules["torch"]
        generator.set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))
    else:
        generator.set_state(tuple(state))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state
