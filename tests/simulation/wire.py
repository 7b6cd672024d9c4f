"""A simulated wire: what dragon._core.Wire does with messages of agents, with the sessions of src/wire/sessions.cpp.

Frames of a session are numbered, kept until they are acknowledged, and sent again over the next connection. The wire
runs in a thread of its own; Python's part of the agent takes its events. Operations on objects, outboxes and shards are
not simulated.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from simulation.loop import Source, Thread, this_process
from simulation.network import Network, Socket

ACKNOWLEDGE_S = 0.05  # within which frames are acknowledged
Event = tuple[Any, ...]


@dataclass(frozen=True)
class Frame:
    """What is sent: a message, or without a number the epoch. Each has the number of frames that were handled."""

    number: int = 0
    kept: int = 0  # its number among the kept frames of all epochs
    message: bytes = b""
    epoch: int = 0
    acknowledged: int = 0


@dataclass(eq=False)
class Line:
    """A connection of a session, and the epoch that the other side sent over it last."""

    number: int
    socket: Socket
    session: Session | None
    epoch: int = 0
    next: int = 1  # the number of the next frame to be sent over it


@dataclass(eq=False)
class Session:
    """What is sent to and from a node, over one line after the other."""

    node: int
    epoch: int = 0
    last: int = 0
    handled: int = 0
    acknowledged: int = 0
    kept_last: int = 0
    kept_handled: int = 0
    sent: deque[Frame] = field(default_factory=deque)  # what the other side has not acknowledged
    lines: list[Line] = field(default_factory=list)
    line: Line | None = None  # the one over which frames are sent
    was_connected: bool = False
    wanted: bool = False
    acknowledging: bool = False


class Wire(Source):
    """The wire of a simulated agent."""

    def __init__(self, node: int, network: Network) -> None:
        self.node, self.network, self.loop = node, network, network.loop
        self._thread = Thread(this_process(), "wire")
        self._sessions: dict[int, Session] = {}
        self._lost: set[int] = set()
        self._lines: dict[int, Line] = {}
        self._events: list[Event] = []

    # ---- events

    def fileno(self) -> Wire:
        return self

    def is_readable(self) -> bool:
        return bool(self._events)

    def take(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken

    def _tell(self, kind: str, node: int, number: int = 0, flag: bool = False, text: Any = "") -> None:
        self._events.append((kind, node, number, 0, (0, 0, 0), flag, text, None))
        self.changed()

    # ---- connections

    def add(self, fd: int, node: int, *_: object) -> int:
        socket = self.network.sockets[fd]
        if node in self._lost:
            socket.close()
            return 0
        s = self._session(node)
        line = self._lines[fd] = Line(fd, socket, s)
        s.lines.append(line)
        s.was_connected, s.wanted = True, False
        self._write_state(line)
        if s.line is None:
            self._use(s, line)
        self._tell("Made", node)
        self._thread.soon(socket.watch, lambda: self._read(line))
        return fd

    def _session(self, node: int) -> Session:
        return self._sessions.setdefault(node, Session(node))

    def _use(self, s: Session, line: Line | None) -> None:
        s.line = line
        if line is not None:
            line.next = s.sent[0].number if s.sent else s.last + 1
            self._write_state(line)
            self._pump(s)

    def _broke(self, line: Line, reason: str, invalid: bool = False) -> None:
        s = line.session
        if s is None:
            return
        line.session = None
        line.socket.close()
        del self._lines[line.number]
        s.lines.remove(line)
        if s.line is line:
            self._use(s, s.lines[0] if s.lines else None)
        self._tell("Broken", s.node, line.number, invalid, reason)

    def abort(self, connection: int, reason: str) -> None:
        if connection in self._lines:
            self._broke(self._lines[connection], reason)

    def connections(self) -> list[int]:
        return list(self._lines)

    def close(self) -> None:
        for line in list(self._lines.values()):
            self._broke(line, "this node's agent ends")

    def forget(self, node: int, reason: str, text: str) -> None:
        self._lost.add(node)
        s = self._sessions.pop(node, None)
        for line in list(s.lines) if s is not None else ():
            self._broke(line, "the node is lost")

    def state(self, node: int) -> tuple[bool, bool, bool, bool]:
        s = self._sessions.get(node) or Session(node)
        return s.line is not None, s.was_connected, bool(s.sent), any(frame.kept for frame in s.sent)

    # ---- what this side sends

    def send(self, node: int, message: bytes, payload: None, kept: bool) -> int:
        if node in self._lost:
            return 0
        s = self._session(node)
        s.kept_last += kept
        s.last += 1
        s.sent.append(Frame(s.last, s.kept_last if kept else 0, message))
        if s.line is not None:
            self._pump(s)
        elif not s.wanted:
            s.wanted = True
            self._tell("Wanted", node)
        return s.epoch

    def _pump(self, s: Session) -> None:
        line = s.line
        assert line is not None
        for frame in list(s.sent):
            if frame.number >= line.next:
                line.next = frame.number + 1
                s.acknowledged = s.handled
                self._transmit(line, replace(frame, acknowledged=s.handled))

    def _write_state(self, line: Line) -> None:
        s = line.session
        assert s is not None
        if s.line is line:
            s.acknowledged = s.handled
        self._transmit(line, Frame(epoch=s.epoch, acknowledged=s.handled))

    def _transmit(self, line: Line, frame: Frame) -> None:
        if line.socket.error is None:  # else the connection is about to be read, which tells its end
            self.network.send(line.socket, frame)

    # ---- what the other side sends

    def _read(self, line: Line) -> None:
        try:
            frame = line.socket.take()
        except OSError as error:
            self._broke(line, str(error))
            return
        if not frame:
            self._broke(line, "the connection was closed")
        elif line.session is not None:
            self._hear(line, line.session, frame)

    def _hear(self, line: Line, s: Session, frame: Frame) -> None:
        if not frame.number:
            line.epoch = frame.epoch
            if line.epoch > s.epoch:
                self._begin_epoch(s, line.epoch, "the other agent could not connect again in time", line)
        if line.epoch != s.epoch:
            return
        assert frame.acknowledged <= s.last, "a frame is acknowledged that was not sent"
        while s.sent and s.sent[0].number <= frame.acknowledged:
            s.sent.popleft()
        if not frame.number or self._is_known(s, frame):
            return
        assert frame.number == s.handled + 1, "a frame is missing"
        s.handled = frame.number
        self._acknowledge_soon(s)
        if frame.kept:
            if frame.kept <= s.kept_handled:
                return
            assert frame.kept == s.kept_handled + 1, "a kept frame is missing"
            s.kept_handled = frame.kept
        self._tell("Control", s.node, s.epoch, text=frame.message)

    def _is_known(self, s: Session, frame: Frame) -> bool:
        return frame.number <= s.handled

    def _acknowledge_soon(self, s: Session) -> None:
        if not s.acknowledging:
            s.acknowledging = True
            self._thread.later(ACKNOWLEDGE_S, self._acknowledge, s)

    def _acknowledge(self, s: Session) -> None:
        s.acknowledging = False
        if s.acknowledged < s.handled and s.line is not None:
            self._write_state(s.line)

    # ---- epochs

    def end_epoch(self, node: int, reason: str, hopeless: bool) -> None:
        s = self._session(node)
        self._begin_epoch(s, s.epoch + 1, reason, None)

    def _begin_epoch(self, s: Session, epoch: int, reason: str, besides: Line | None) -> None:
        s.epoch, before = epoch, s.sent
        s.last = s.handled = s.acknowledged = 0
        s.wanted, s.sent = False, deque()
        for frame in before:
            if frame.kept:
                s.last += 1
                s.sent.append(replace(frame, number=s.last))
        for line in list(s.lines) if besides is not None else ():
            if line is not besides:
                self._broke(line, "the other agent could not connect again in time")
        s.was_connected = bool(s.lines)
        for line in s.lines:
            self._write_state(line)
        self._use(s, s.line)
        self._tell("Ended", s.node, s.epoch, text=reason)

    # ---- what is not simulated, and not used by what is

    def set_nodes(self, count: int) -> None: ...
    def open_desk(self) -> None: ...
    def look_at_all(self) -> None: ...
    def announce(self, *_: object) -> None: ...
    def fail(self, *_: object) -> None: ...
    def left(self, pid: int) -> bool:
        return False
