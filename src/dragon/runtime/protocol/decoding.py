"""All requests, and how an agent decodes them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any

import msgspec

from dragon.infrastructure.messages import decoder_of, encode
from dragon.runtime.protocol import agents, groups, jobs, objects, processes, run, shards, telemetry
from dragon.runtime.protocol.request import BetweenAgents, Request, tag_of

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

# All requests of agents and front ends to agents, and all notices between agents.
AnyRequest = _union(FROM_AGENTS)
AnyNotice: Any = functools.reduce(operator.or_, agents.Notice.__subclasses__())

_KIND_OF_TAG = {encode(tag): kind for tag, kind in FROM_PROCESSES.items()}  # by the encoded tag


@functools.cache
def _decoder(kind: type[Request[object]]) -> msgspec.msgpack.Decoder[Request[object]]:
    """Return the decoder of one kind, made at its first use: a decoder of all kinds takes a tenth of an agent's
    start."""
    return decoder_of(kind)


def decode_request(body: bytes) -> Request[object]:
    """Return the request of a process."""
    # The first byte is the length of the array, the second the length of the tag, which is always below 32.
    kind = _KIND_OF_TAG.get(body[1 : 2 + body[1] % 32]) if len(body) > 1 else None
    if kind is None:
        asked: Any = msgspec.msgpack.decode(body)
        tag = asked[0] if isinstance(asked, list) and asked else asked
        kind = FROM_PROCESSES.get(tag) if isinstance(tag, str) else None
        if kind is None:
            raise ValueError(f"the agent has no operation {tag!r}")
    try:
        return _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise ValueError(f"{tag_of(kind)}: {error}") from None
