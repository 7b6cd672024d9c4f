"""The screen of `dragon top`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.signals import ENDING
from dragon.top.snapshot import Snapshot
from dragon.top.tables import TABLES, Row, Table, duration

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
        """Yield the widgets: the facts of the run, the filter, a tab for each table, and the keys."""
        yield self._facts
        yield self._filter
        with self._tabs:
            for number, table in enumerate(TABLES, start=1):
                with TabPane(f"{number} {table.title}", id=table.title):
                    yield self._tables[table.title]
        yield Footer()

    async def on_mount(self) -> None:
        """Add the columns, show the first values, and refresh them every period."""
        for number in ENDING:  # without a handler, these would leave the terminal in the screen's mode
            asyncio.get_running_loop().add_signal_handler(number, functools.partial(self._end, 128 + number))
        for table in TABLES:
            for column in table.columns:
                self._tables[table.title].add_column(column, key=column)
        if self._period is not None:
            self.set_interval(self._period, self._refresh)
        await self._refresh()
        self._tables[TABLES[0].title].focus()

    def _end(self, code: int) -> None:
        self.exit(return_code=code)

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
            rows.sort(key=lambda row: _sortable(row, place), reverse=downwards)
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
        """Show another table."""
        self._tabs.active = title

    def on_tabbed_content_tab_activated(self) -> None:
        """Draw the table that is now shown."""
        self._draw()
        self._tables[self._shown.title].focus()

    def action_sort(self) -> None:
        """Sort by the next column."""
        table = self._shown
        order, _ = self._orders[table.title]
        following = (table.columns.index(order) + 1) % len(table.columns) if order else 0
        self._order_by(table.columns[following])

    def action_reverse(self) -> None:
        """Reverse the order."""
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
        """Show the input for the text that rows must contain."""
        self._filter.display = True
        self._filter.focus()

    def action_leave(self) -> None:
        """Show all rows again."""
        self._filter.value, self._filter.display = "", False
        self._tables[self._shown.title].focus()
        self._draw()

    def on_input_changed(self) -> None:
        """Show only the rows that contain the text."""
        self._draw()

    def on_input_submitted(self) -> None:
        """Go back to the rows."""
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
        """Look at an earlier or later time."""
        self._move(seconds)
        await self._refresh()


def _sortable(row: Row, place: int) -> tuple[bool, float, str]:
    """Return a key that sorts numbers before text, so that a column may have both."""
    value = row.cells[place].value
    return (True, 0.0, value) if isinstance(value, str) else (False, value, "")
