"""All requests, as an agent takes them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any

import msgspec

from dragon.infrastructure.messages import decoder_of
from dragon.runtime.protocol import agents, groups, jobs, objects, processes, run, shards, telemetry
from dragon.runtime.protocol.request import BetweenAgents, Request, tag_of

__all__ = ["FROM_AGENTS", "FROM_PROCESSES", "AnyNotice", "AnyRequest", "decode_request"]

_WINGS = (agents, groups, jobs, objects, processes, run, shards, telemetry)


def _kinds() -> Iterator[type[Request[object]]]:
    for wing in _WINGS:
        for found in vars(wing).values():
            if isinstance(found, type) and issubclass(found, Request) and found.__struct_config__.tag is not None:
                yield found


def _union(kinds: dict[str, type[Request[object]]]) -> Any:
    return functools.reduce(operator.or_, kinds.values())


FROM_PROCESSES = {tag_of(kind): kind for kind in _kinds() if not issubclass(kind, BetweenAgents)}
FROM_AGENTS = {tag_of(kind): kind for kind in _kinds() if not issubclass(kind, objects.OfAProcess)}

# What agents, and front ends, ask of agents, and what these tell each other.
AnyRequest = _union(FROM_AGENTS)
AnyNotice: Any = functools.reduce(operator.or_, agents.Notice.__subclasses__())

_from_processes: msgspec.msgpack.Decoder[Request[object]] = decoder_of(_union(FROM_PROCESSES))


def decode_request(body: bytes) -> Request[object]:
    """What a process asks. Raises ValueError where that is no request."""
    try:
        return _from_processes.decode(body)
    except msgspec.ValidationError as error:
        asked: Any = msgspec.msgpack.decode(body)
        tag = asked[0] if isinstance(asked, list) and asked else asked
        if isinstance(tag, str) and tag in FROM_PROCESSES:
            raise ValueError(f"{tag}: {error}") from None
        raise ValueError(f"the agent knows no operation {tag!r}") from None
