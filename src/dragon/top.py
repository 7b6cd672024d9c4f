"""A run in a terminal: its nodes, devices, processes, queues and pools, as tables that are updated while it runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.metrics import PROCESS_STATES, Lifetime, RunState
from dragon.infrastructure.signals import ENDING
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import Ask
from dragon.runtime.protocol.telemetry import Lifetimes, Query, StateOfRun
from dragon.signals import name_of

_HISTORY_S = 60.0
_NEWEST = 15.0

OF_PROCESSES = ("process_cpu_percent", "process_memory", "process_state")


class Series(msgspec.Struct, array_like=True):
    """Values of one metric with one set of tags, by time in seconds since 1970."""

    metric: str
    tags: dict[str, str]
    times: list[float]
    values: list[float]


class Snapshot(msgspec.Struct):
    """The state of a run at one moment, `now` in seconds since 1970."""

    now: float
    run: RunState
    series: list[Series]
    lifetimes: list[Lifetime]


async def take(ask: Ask, now: float) -> Snapshot:
    """Ask a run for its state. Raises what `ask` raises."""

    async def query(metrics: Sequence[str], start: float, interval: float) -> list[Series]:
        records = await ask(Query(list(metrics), {}, start, math.inf, interval, "last"))
        return [Series(*record) for record in records]

    return Snapshot(
        now=now,
        run=await ask(StateOfRun()),
        series=[*await query(_MEASURED, now - _HISTORY_S, 1.0), *await query(OF_PROCESSES, now - _NEWEST, 0.0)],
        lifetimes=await ask(Lifetimes()),
    )


_BARS = " ▁▂▃▄▅▆▇█"
_SPARK = 20
_ENDED_SHOWN = 200  # processes that have ended, the newest


class Cell(NamedTuple):
    """The text that is shown, and the value to sort by."""

    text: str
    value: float | str


class Row(NamedTuple):
    """A line of a table. `state` is "", "ended" or "failed"."""

    key: str
    cells: Sequence[Cell]
    state: str = ""


class _Subject:
    """Something that has metrics: a node, a queue."""

    def __init__(self, tags: tuple[str, ...]) -> None:
        self.tags = tags
        self._series: dict[str, list[Series]] = {}

    def add(self, series: Series) -> None:
        self._series.setdefault(series.metric, []).append(series)

    def values(self, metric: str) -> list[float]:
        return self._series[metric][0].values if metric in self._series else []

    def last(self, metric: str) -> float | None:
        """Return the newest value, summed if there are several series."""
        found = [series.values[-1] for series in self._series.get(metric, ())]
        return sum(found) if found else None

    def rate(self, metric: str) -> float | None:
        points = [
            point for one in self._series.get(metric, ())[:1] for point in zip(one.times, one.values, strict=True)
        ]
        if len(points) < 2:
            return None
        (t1, earlier), (t2, later) = points[-2:]
        return max(later - earlier, 0.0) / max(t2 - t1, 1e-9)


def _subjects(snapshot: Snapshot, metrics: Iterable[str], *names: str) -> list[_Subject]:
    wanted = set(metrics)
    found: dict[tuple[str, ...], _Subject] = {}
    for series in snapshot.series:
        if series.metric in wanted and series.values:
            tags = tuple(series.tags.get(name, "") for name in names)
            found.setdefault(tags, _Subject(tags)).add(series)
    return list(found.values())


# ---- cells


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """Return the newest values as bars. A bar of full height is `top`, by default the largest value."""
    shown = values[-_SPARK:]
    highest = max([*shown, 1e-9]) if top is None else top
    steps = len(_BARS) - 1
    return "".join(_BARS[min(round(max(value, 0) / highest * steps), steps)] for value in shown)


def _number(value: float | None, unit: str = "") -> Cell:
    if value is None:
        return Cell("", -1.0)
    base, prefixes = (1024, ("", "Ki", "Mi", "Gi", "Ti")) if unit.startswith("B") else (1000, ("", "k", "M", "G"))
    shown, step = value, 0
    while unit != "%" and abs(shown) >= base and step < len(prefixes) - 1:
        shown, step = shown / base, step + 1
    digits = 0 if shown == int(shown) or abs(shown) >= 100 else 1
    return Cell(f"{shown:.{digits}f} {prefixes[step]}{unit}".rstrip(), value)


def _text(value: str) -> Cell:
    return Cell(value, value)


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---- tables


def _processes(snapshot: Snapshot) -> list[Row]:
    known = {subject.tags[0]: subject for subject in _subjects(snapshot, OF_PROCESSES, "puid")}
    ended = sorted((life for life in snapshot.lifetimes if life.ended is not None), key=lambda life: life.ended or 0.0)
    shown = [life for life in snapshot.lifetimes if life.ended is None] + ended[-_ENDED_SHOWN:]
    return [_process(life, known.get(str(life.puid), _Subject(())), snapshot.now) for life in shown]


def _process(life: Lifetime, known: _Subject, now: float) -> Row:
    state = known.last("process_state")
    told, look = (PROCESS_STATES[int(state)] if state is not None else "lives"), ""
    if life.ended is not None:
        code = life.code or 0
        told = "ended" if code == 0 else f"exit code {code}" if code > 0 else f"killed by signal {name_of(-code)}"
        if life.terminated:
            told = f"terminated by {name_of(-code if code < 0 else code - 128)}"
        look = "failed" if life.has_failed else "ended"
    lasted = (life.ended or now) - life.started
    cells = [
        _text(life.name),
        Cell(str(life.puid), life.puid),
        Cell(str(life.pid), life.pid),
        _text(life.host),
        _text(told),
        _number(known.last("process_cpu_percent") if life.ended is None else None, "%"),
        _number(known.last("process_memory") if life.ended is None else None, "B"),
        Cell(duration(lasted), lasted),
    ]
    return Row(str(life.puid), cells, look)


class Column(NamedTuple):
    """A column of a table of measurements: its title, and a metric of which it shows the newest value in a unit; the
    `rate` of a counter; or as `bars` the values, a bar of full height being `top`."""

    title: str
    metric: str
    unit: str = ""
    how: str = "value"
    top: float | None = None

    def cell(self, subject: _Subject) -> Cell:
        if self.how == "bars":
            values = subject.values(self.metric)
            return Cell(sparkline(values, self.top), values[-1] if values else -1.0)
        return _number(subject.rate(self.metric) if self.how == "rate" else subject.last(self.metric), self.unit)


class Table(NamedTuple):
    """A table: its title, its columns, the function that makes its rows, and the column to sort by, descending."""

    title: str
    columns: tuple[str, ...]
    rows: Callable[[Snapshot], list[Row]]
    order: str


_OF_NODES = (
    Column("CPU", "cpu_percent", how="bars", top=100),
    Column("now", "cpu_percent", "%"),
    Column("Memory", "used_RAM", "%"),
    Column("Received", "network_received", "B/s", "rate"),
    Column("Sent", "network_sent", "B/s", "rate"),
    Column("Shared", "arena_used", "B"),
    Column("Processes", "num_running_processes"),
)
_OF_GPUS = (
    Column("Busy", "DeviceUtilization", how="bars", top=100),
    Column("now", "DeviceUtilization", "%"),
    Column("Memory", "DeviceMemoryUtilization", "%"),
    Column("Power", "DevicePowerUsage", "W"),
    Column("Temperature", "DeviceTemperature", "°C"),
)
_OF_QUEUES = (
    Column("Messages", "queue_depth", how="bars"),
    Column("now", "queue_depth"),
    Column("Put", "queue_puts", "/s", "rate"),
    Column("Taken", "queue_gets", "/s", "rate"),
    Column("Waiting", "queue_waiting"),
)
_OF_POOLS = (
    Column("Workers", "pool_workers"),
    Column("Running", "pool_tasks_running", how="bars"),
    Column("now", "pool_tasks_running"),
    Column("Waiting", "pool_tasks_waiting"),
    Column("Done", "pool_tasks_done"),
    Column("Rate", "pool_tasks_done", "/s", "rate"),
)
# The metrics whose history is shown; for those of processes the newest value is enough.
_MEASURED = sorted({column.metric for column in (*_OF_NODES, *_OF_GPUS, *_OF_QUEUES, *_OF_POOLS)})


def _measured(
    title: str,
    names: dict[str, str],
    columns: Sequence[Column],
    order: str = "",
    others: Callable[[Snapshot], list[Row]] = lambda snapshot: [],
) -> Table:
    """Return a table with a row for everything that has one of the metrics, which the tags in `names` tell apart."""

    def rows(snapshot: Snapshot) -> list[Row]:
        found = _subjects(snapshot, {column.metric for column in columns}, *names.values())
        cells = [[*map(_text, one.tags), *(column.cell(one) for column in columns)] for one in found]
        return [Row("/".join(one.tags), row) for one, row in zip(found, cells, strict=True)] + others(snapshot)

    return Table(title, (*names, *(column.title for column in columns)), rows, order)


def _lost(snapshot: Snapshot) -> list[Row]:
    hosts = {snapshot.run.hosts[index]: reason for index, reason in snapshot.run.lost.items()}
    empty = [Cell("", -1.0)] * (len(_OF_NODES) - 1)
    return [
        Row(f"lost {host}", [_text(host), _text(f"is lost: {reason}"), *empty], "failed")
        for host, reason in hosts.items()
    ]


TABLES = (
    _measured("Nodes", {"Node": "host"}, _OF_NODES, others=_lost),
    _measured("GPUs", {"Node": "host", "GPU": "gpu"}, _OF_GPUS),
    Table("Processes", ("Name", "puid", "pid", "Node", "State", "CPU", "Memory", "Time"), _processes, "CPU"),
    _measured("Queues", {"Node": "host", "Queue": "queue", "Made at": "place"}, _OF_QUEUES, "now"),
    _measured("Pools", {"Node": "host", "Pool": "pool", "Made at": "place"}, _OF_POOLS),
)


_STYLES = {"": "", "ended": "dim", "failed": "red"}


class Top(App[None]):
    """Shows what `look` returns, refreshed every `period` seconds."""

    TITLE = "dragon top"
    CSS = "#facts { height: 1; padding: 0 1; } #filter { display: none; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        *(
            Binding(str(number), f"show('{table.title}')", table.title, show=False)
            for number, table in enumerate(TABLES, start=1)
        ),
        Binding("s", "sort", "Sort by the next column"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "find", "Find"),
        Binding("escape", "leave", "Show all", show=False),
    ]

    def __init__(self, look: Callable[[], Awaitable[Snapshot]], period: float | None) -> None:
        super().__init__()
        self._look = look
        self._period = period
        self._snapshot: Snapshot | None = None
        self._orders = {table.title: (table.order, bool(table.order)) for table in TABLES}
        # Kept, not looked up on the screen, which may be closed when an answer comes.
        self._facts = Static(id="facts")
        self._filter = Input(placeholder="a part of any cell", id="filter")
        self._tabs = TabbedContent(initial=TABLES[0].title)
        self._tables: dict[str, DataTable[Text]] = {
            table.title: DataTable(cursor_type="row", zebra_stripes=True, id=f"table-{table.title}") for table in TABLES
        }

    def compose(self) -> ComposeResult:
        yield self._facts
        yield self._filter
        with self._tabs:
            for number, table in enumerate(TABLES, start=1):
                with TabPane(f"{number} {table.title}", id=table.title):
                    yield self._tables[table.title]
        yield Footer()

    async def on_mount(self) -> None:
        for number in ENDING:  # without a handler, these would leave the terminal in the screen's mode
            asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)
        for table in TABLES:
            for column in table.columns:
                self._tables[table.title].add_column(column, key=column)
        if self._period is not None:
            self.set_interval(self._period, self._refresh)
        await self._refresh()
        self._tables[TABLES[0].title].focus()

    @property
    def _shown(self) -> Table:
        return next(table for table in TABLES if table.title == self._tabs.active)

    async def _refresh(self) -> None:
        try:
            self._snapshot = await self._look()
        except DragonError as error:
            self._facts.update(Text(str(error), style="red"))
            return
        self._draw()

    def _draw(self) -> None:
        if self._snapshot is None:
            return
        run = self._snapshot.run
        nodes = f"{len(run.hosts) - len(run.lost)} nodes" + (f", {len(run.lost)} lost" if run.lost else "")
        facts = f"{run.command}   run {run.name}, {nodes}, {duration(self._snapshot.now - run.started)}"
        self._facts.update(Text(facts, style="bold", no_wrap=True, overflow="ellipsis"))
        self._fill(self._shown)

    def _fill(self, table: Table) -> None:
        assert self._snapshot is not None
        widget, rows = self._tables[table.title], table.rows(self._snapshot)
        wanted = self._filter.value.lower()
        rows = [row for row in rows if any(wanted in cell.text.lower() for cell in row.cells)]
        order, downwards = self._orders[table.title]
        if order:
            place = table.columns.index(order)

            def rank(row: Row) -> tuple[bool, float, str]:  # numbers before text, as a column may have both
                value = row.cells[place].value
                return (True, 0.0, value) if isinstance(value, str) else (False, value, "")

            rows.sort(key=rank, reverse=downwards)
        for column in table.columns:
            mark = (" ↓" if downwards else " ↑") if column == order else ""
            widget.columns[next(key for key in widget.columns if key == column)].label = Text(column + mark)
        at, scroll = widget.cursor_row, widget.scroll_y
        widget.clear()
        for row in rows:
            widget.add_row(*(Text(cell.text, style=_STYLES[row.state]) for cell in row.cells), key=row.key)
        widget.move_cursor(row=min(at, max(len(rows) - 1, 0)), scroll=False)
        widget.scroll_to(y=scroll, animate=False)

    # ---- what the keys and the mouse do

    def action_show(self, title: str) -> None:
        self._tabs.active = title

    def on_tabbed_content_tab_activated(self) -> None:
        self._draw()
        self._tables[self._shown.title].focus()

    def action_sort(self) -> None:
        table = self._shown
        order, _ = self._orders[table.title]
        following = (table.columns.index(order) + 1) % len(table.columns) if order else 0
        self._order_by(table.columns[following])

    def action_reverse(self) -> None:
        order, downwards = self._orders[self._shown.title]
        self._orders[self._shown.title] = (order or self._shown.columns[0], not downwards)
        self._draw()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the clicked column; another click reverses the order."""
        column = str(event.column_key.value)
        order, downwards = self._orders[self._shown.title]
        self._order_by(column, not downwards if column == order else True)

    def _order_by(self, column: str, downwards: bool = True) -> None:
        self._orders[self._shown.title] = (column, downwards)
        self._draw()

    def action_find(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_leave(self) -> None:
        self._filter.value, self._filter.display = "", False
        self._tables[self._shown.title].focus()
        self._draw()

    def on_input_changed(self) -> None:
        self._draw()

    def on_input_submitted(self) -> None:
        self._tables[self._shown.title].focus()


class TopOfRecording(Top):
    """Shows a recorded run. `move` goes that many seconds forwards in it, or back."""

    # With priority over the table, which needs these keys only if it is wider than the terminal.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Earlier", priority=True),
        Binding("right", "move(1)", "Later", priority=True),
        Binding("shift+left", "move(-60)", "By a minute", priority=True),
        Binding("shift+right", "move(60)", show=False, priority=True),
    ]

    def __init__(self, look: Callable[[], Awaitable[Snapshot]], move: Callable[[float], None]) -> None:
        super().__init__(look, None)
        self._move = move

    async def action_move(self, seconds: int) -> None:
        self._move(seconds)
        await self._refresh()
