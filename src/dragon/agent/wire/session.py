"""What two agents say to each other, over one connection after the other.

Each frame that this agent sends is numbered, and kept until the other agent has acknowledged it. If their connection
breaks, those that are not acknowledged are sent again over the next one, in order. The other agent handles each number
once. So nothing is lost, and nothing is done twice.

If no connection can be made for a while, the session goes into its next epoch: what was in flight is lost, requests
fail, and the numbers begin again. The agents send each other the epoch first over every connection; the later one
counts for both.

Also here: what is sent until it is acknowledged (KeptFrames).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from dragon.agent.wire.frames import Asked, Cancelled, Failed, Forwarded, Frame, Messages, Noticed, State, Value
from dragon.agent.wire.responses import Answer, Call, RemoteError, error_of
from dragon.infrastructure.messages import encode
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Request

__all__ = [
    "KeptFrame",
    "KeptFrames",
    "Serve",
    "Session",
]


# An answer: an encoded value, and a payload.


KeptFrame = Noticed | Forwarded


class KeptFrames:
    """The frames that one agent keeps for another one until they are acknowledged, and the number of those of the other
    one that it has handled.

    They are numbered from 1. Over the next connection, all that are not acknowledged are sent again before anything
    else.
    """

    def __init__(self) -> None:
        self._last = 0
        self._kept: deque[KeptFrame] = deque()
        self.handled = 0

    def add(self, make: Callable[[int], KeptFrame]) -> KeptFrame:
        """Keep and return the frame that `make` returns for the next number."""
        self._last += 1
        frame = make(self._last)
        self._kept.append(frame)
        return frame

    def __iter__(self) -> Iterator[KeptFrame]:
        """Yield the frames that are not acknowledged, in order."""
        return iter(tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def acknowledged(self, number: int) -> None:
        """Drop the frames up to that number, which the other agent has handled."""
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()

    def is_new(self, number: int) -> bool:
        """Return whether a frame of the other agent has not been handled, and count it as handled. Raises ValueError
        if one before it has not."""
        if number > self.handled + 1:
            raise ValueError(f"frame {number} came after frame {self.handled}")
        if number <= self.handled:
            return False
        self.handled = number
        return True


log = runtime_log("links")

_ACKNOWLEDGE_S = 0.05  # seconds within which frames are acknowledged, sooner if they are many or large
_ACKNOWLEDGE_FRAMES = 256
_ACKNOWLEDGE_BYTES = 2**20
_CONNECT_PAUSE_S = 0.1  # seconds between two connections
_MOST_FAILURES = 3  # of one kind within _FAILURES_S, after which trying again is of no use
_FAILURES_S = 60.0

# (node, request, payload, respond) -> how to cancel. `respond` takes a value and a payload, or an error, and how to
# undo the request, which is called if the answer is lost with the connection.
Serve = Callable[[int, Request[object], Any, Callable[..., None]], Callable[[], None] | None]


class Connection(Protocol):
    """One connection to the other agent."""

    epoch: int  # the last one that the other side sent over it

    def write(self, number: int, data: bytes, payload: Any) -> None:
        """Send an encoded frame, its number, and its payload. Does nothing if the connection has ended."""

    def write_state(self) -> None:
        """Send the epoch of the session, and the number of the last frame that was handled."""

    def abort(self) -> None:
        """Close the connection at once."""


class SessionOwner(Protocol):
    """The agent at this end of a session, as the session uses it."""

    serve: Serve
    received: Callable[[int, int, int, Any], asyncio.Future[None] | None]
    before_send: dict[int, Callable[[int], None]]  # by node: called before anything is sent to it

    def told(self, node: int, frame: KeptFrame) -> None:
        """Handle a notice, or a request that is not answered."""

    def acknowledged(self, node: int, number: int) -> None:
        """Note that a node has handled all kept frames up to that number."""

    def connect_to(self, node: int) -> None:
        """Make a connection, which is then used."""

    def follow_epoch(self, node: int, epoch: int) -> None:
        """Go into the later epoch of the other agent."""

    def give_up(self, node: int, reason: str) -> None:
        """End the epoch of a session: what is in flight is lost."""


class _Failures:
    """The times of the last failures of one kind."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_MOST_FAILURES)
        self._loop = asyncio.get_running_loop()

    def add(self) -> bool:
        """Note a failure; return whether there are too many."""
        self._times.append(self._loop.time())
        return self.are_many()

    def are_many(self) -> bool:
        """Return whether there were too many of late."""
        return len(self._times) == _MOST_FAILURES and self._loop.time() - self._times[0] < _FAILURES_S


class _Sent(NamedTuple):
    number: int
    data: bytes
    payload: Any
    kept: int  # the number of a kept frame, otherwise 0
    undo: Callable[[], None] | None  # undoes what the frame answers


class Session:
    """The session with one other agent. Frames are sent over `link`, the one of its `links` that was made first."""

    def __init__(self, owner: SessionOwner, node: int) -> None:
        self._owner = owner
        self._node = node
        self.epoch = 0
        self.link: Connection | None = None
        self.links: list[Connection] = []
        self.was_connected = False  # in this epoch
        self.why_broken = ""  # the last connection that ended
        self._sent: deque[_Sent] = deque()
        self._last = 0
        self._handled = self._acknowledged = 0
        self.before = (-1, 0)  # see State
        self._unanswered: tuple[int, list[_Sent]] = (-1, [])  # an epoch, and its answers that may not have arrived
        self._unacknowledged_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tried = float("-inf")  # when a connection was made last
        self._of_lanes, self._of_data = _Failures(), _Failures()
        # Requests are numbered on over all epochs, so that late answers are not taken for those of others.
        self._asked = 0
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._late: dict[int, Callable[[Answer], None]] = {}  # of cancelled requests, until they are answered
        self._serving: dict[int, Callable[[], None] | None] = {}
        self._loop = asyncio.get_running_loop()

    # ---- connections

    def add(self, link: Connection) -> None:
        """Use a new connection, if there is no other one."""
        self.links.append(link)
        self.was_connected = True
        if self.link is None:
            self._use(link)

    def remove(self, link: Connection) -> None:
        """Use another connection, if there is one, in place of one that has ended."""
        if link in self.links:
            self.links.remove(link)
        if self.link is link:
            self.link = None
            if self.links:
                self._use(self.links[0])

    def _use(self, link: Connection) -> None:
        self.link = link
        for sent in tuple(self._sent):
            link.write(sent.number, sent.data, sent.payload)

    def pause(self) -> float:
        """Return for how many seconds to wait before connecting: not at all, unless that was tried a moment ago."""
        tried, self._tried = self._tried, self._loop.time()
        return min(max(tried + _CONNECT_PAUSE_S - self._tried, 0), _CONNECT_PAUSE_S)

    @property
    def is_idle(self) -> bool:
        """Whether neither side waits for the other."""
        return not (self._sent or self._pending or self._serving)

    def end_epoch(self, epoch: int) -> list[asyncio.Future[Answer]]:
        """Go into a later epoch. Returns the futures of the requests whose answers are lost."""
        if self.was_connected:
            self.before = self.epoch, self._handled
            self._unanswered = self.epoch, [sent for sent in self._sent if sent.undo is not None]
        self.epoch = epoch
        self.was_connected = bool(self.links)
        self._sent.clear()
        self._last = self._handled = self._acknowledged = self._unacknowledged_bytes = 0
        for cancel in self._serving.values():
            if cancel is not None:
                cancel()
        pending, self._pending, self._serving, self._late = self._pending, {}, {}, {}
        for link in self.links:
            link.write_state()
        return list(pending.values())

    def lane_lost(self, reason: str) -> None:
        """Note that the lane of a connection failed."""
        if self._of_lanes.add():
            log.warning("the way for payloads to node %d fails (%s); they go there over the link", self._node, reason)

    def avoids_fabric(self) -> bool:
        """Return whether a new connection does without the fabric, as that has failed several times of late."""
        return self._of_lanes.are_many()

    def was_invalid(self) -> None:
        """Note that a connection was closed because of what it brought. If that happens again and again, the epoch
        ends, so that it is not sent once more."""
        if self._of_data.add():
            self._owner.give_up(self._node, "what one side sends is invalid")

    def abort(self, besides: Connection | None = None) -> None:
        """Close all connections, or all but one."""
        for link in [link for link in self.links if link is not besides]:
            link.abort()

    # ---- what this side sends

    def send(self, frame: Frame, payload: Any = b"", undo: Callable[[], None] | None = None) -> None:
        """Send a frame, over the next connection if there is none. `undo` is called if it is an answer that did not
        arrive."""
        self.queue(frame, payload, undo)
        if self.link is None:
            self._owner.connect_to(self._node)

    def queue(self, frame: Frame, payload: Any = b"", undo: Callable[[], None] | None = None) -> None:
        """Send a frame now or over the next connection, but make none for it."""
        if self._node in self._owner.before_send:
            self._owner.before_send[self._node](self._node)
        self._last += 1
        kept = frame.number if isinstance(frame, Noticed | Forwarded) else 0
        sent = _Sent(self._last, encode(frame), payload, kept, undo)
        self._sent.append(sent)
        if self.link is not None:
            self.link.write(sent.number, sent.data, payload)

    def ask(self, request: Request[object], payload: Any, future: asyncio.Future[Answer]) -> None:
        """Send a request. Its answer becomes the result of the future, unless that is done."""
        if future.done():
            return
        self._asked = number = self._asked + 1
        self._pending[number] = future
        future.add_done_callback(lambda done: self._asked_no_more(number, done))
        self.send(Asked(number, request), payload)

    def _asked_no_more(self, number: int, future: asyncio.Future[Answer]) -> None:
        if self._pending.pop(number, None) is not None and future.cancelled():
            if isinstance(future, Call) and future.late is not None:
                self._late[number] = future.late
            self.send(Cancelled(number))

    # ---- what the other side sends

    def hear(
        self, link: Connection, number: int, acknowledged: int, frame: Frame, payload: Any
    ) -> asyncio.Future[None] | None:
        """Handle a frame that arrived over a connection, unless it was handled before or belongs to another epoch.

        Returns a future if frames after it must wait until that is done. Raises ValueError if frames before it are
        missing.
        """
        if isinstance(frame, Noticed) and not number:
            self._owner.told(self._node, frame)  # that this node is lost, in whatever epoch
            return None
        if isinstance(frame, State):
            link.epoch = frame.epoch
            if frame.epoch > self.epoch:
                self._owner.follow_epoch(self._node, frame.epoch)
                self.abort(besides=link)
            self._undo_unanswered(*frame.before)
        if link.epoch != self.epoch:
            return None
        self._drop(acknowledged)
        if not number:
            return None
        if number > self._handled + 1:
            raise ValueError(f"frame {number} came after frame {self._handled}")
        if number <= self._handled:
            return None
        self._handled = number
        turn = self._handle(frame, payload)
        self._acknowledge_soon(memoryview(payload).nbytes)  # unless that was done with a frame in return
        return turn

    def _undo_unanswered(self, epoch: int, handled: int) -> None:
        """Undo what was answered in an earlier epoch by frames that the other side has not handled."""
        if epoch == self._unanswered[0]:
            unanswered, self._unanswered = self._unanswered[1], (-1, [])
            for sent in reversed(unanswered):
                if sent.number > handled and sent.undo is not None:
                    sent.undo()

    def _handle(self, frame: Frame, payload: Any) -> asyncio.Future[None] | None:
        match frame:
            case Messages():
                return self._owner.received(self._node, frame.flow, frame.kind, payload)
            case Asked():
                self._serve(frame.number, frame.request, payload)
            case Value():
                self._answered(frame.number, (frame.value, payload))
            case Failed():
                self._answered(frame.number, RemoteError(frame.kind, frame.text))
            case Noticed() | Forwarded():
                self._owner.told(self._node, frame)
            case Cancelled():
                cancel = self._serving.get(frame.number)
                if cancel is not None:
                    cancel()
                    self._respond(frame.number, None, b"", asyncio.CancelledError())
        return None

    def _serve(self, number: int, request: Request[object], payload: Any) -> None:
        epoch = self.epoch

        def respond(*answer: Any) -> None:
            if self.epoch == epoch:
                self._respond(number, *answer)

        cancel = self._owner.serve(self._node, request, payload, respond)
        if cancel is not None:
            self._serving[number] = cancel

    def _respond(
        self,
        number: int,
        value: Any,
        payload: Any = b"",
        error: BaseException | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        self._serving.pop(number, None)
        if error is not None:
            self.send(Failed(number, *error_of(error)))
        else:
            self.send(Value(number, value), payload, undo)

    def _answered(self, number: int, answer: Answer | RemoteError) -> None:
        future = self._pending.pop(number, None)
        late = self._late.pop(number, None)
        if isinstance(future, Call) and future.cancelled():  # just now: _asked_no_more() was not called yet
            late = future.late
        if late is not None and not isinstance(answer, RemoteError):
            late(answer)
        if future is None or future.done():
            return
        if isinstance(answer, RemoteError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    # ---- acknowledgements

    def acknowledge(self) -> int:
        """Return the number of the last frame that was handled, which is sent with whatever is sent next."""
        self._acknowledged, self._unacknowledged_bytes = self._handled, 0
        return self._handled

    def _acknowledge_soon(self, size: int) -> None:
        if self._acknowledged == self._handled:
            return
        self._unacknowledged_bytes += size
        many = self._handled - self._acknowledged >= _ACKNOWLEDGE_FRAMES
        if many or self._unacknowledged_bytes >= _ACKNOWLEDGE_BYTES:
            self._acknowledge_now()
        elif self._timer is None:
            self._timer = self._loop.call_later(_ACKNOWLEDGE_S, self._acknowledge_late)

    def _acknowledge_late(self) -> None:
        self._timer = None
        if self._acknowledged < self._handled:
            self._acknowledge_now()

    def _acknowledge_now(self) -> None:
        if self.link is not None:  # otherwise the frames are sent again, over the next connection
            self.link.write_state()

    def _drop(self, acknowledged: int) -> None:
        """Keep the frames up to that number no longer. Raises ValueError if they were not all sent."""
        if acknowledged > self._last:
            raise ValueError(f"frame {acknowledged} is acknowledged, but the last one is {self._last}")
        while self._sent and self._sent[0].number <= acknowledged:
            sent = self._sent.popleft()
            if sent.kept:
                self._owner.acknowledged(self._node, sent.kept)
