"""Shows the charts of a run in a notebook."""

from __future__ import annotations

import html
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from dragon.infrastructure.errors import NotSupportedError
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.telemetry import StateOfRun
from dragon.telemetry.analysis import AnalysisClient
from dragon.telemetry.recording import Recording
from dragon.telemetry.report import report

__all__ = ["DragonTelemetryWidget"]

_WINDOW_S = 600.0  # seconds; what a node keeps of values that are measured every second


class DragonTelemetryWidget:
    """Shows the telemetry of the notebook's run, or with a `path` of a recording. Raises NoRecordingError if there is
    no recording.

    Examples:
        >>> from dragon.telemetry import Telemetry
        >>> from dragon.telemetry.widget import DragonTelemetryWidget
        >>> Telemetry().start(1)
        >>> Telemetry().add_data("reward", 1.0)
        >>> page = DragonTelemetryWidget().render()  # as the last line of a cell it is shown
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._client = AnalysisClient(path)
        self._recording = None if path is None else Recording(path)

    def connect(self, timeout: float | None = None) -> None:
        """Wait until the run has telemetry enabled; see AnalysisClient.connect()."""
        self._client.connect(timeout)

    def get_start_time(self) -> float:
        """Return when the run started, in seconds since 1970."""
        if self._recording is not None:
            return self._recording.start
        return ask(StateOfRun()).started

    def get_metrics(self) -> list[str]:
        """Return the sorted names of the metrics that have values on some node."""
        return sorted(self._client.get_metrics())

    def get_data(self, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        """Return the values of metrics; see AnalysisClient.get_data()."""
        return self._client.get_data(*arguments, **options)

    def render(self, hosts: Sequence[str] = (), start_time: float | None = None, height: int = 800) -> Page:
        """Return the page that `dragon report` makes, with charts of these hosts or else of the first 32. As the last
        line of a cell it is shown, `height` pixels high.

        It begins at `start_time`, in seconds since 1970: by default ten minutes ago for a run, at the start for a
        recording. Raises RuntimeError if telemetry is not enabled, NoRecordingError without pyarrow or such a host.
        """
        if self._recording is not None:
            return Page(report(self._recording, hosts, start_time or 0.0), height)
        since = time.time() - _WINDOW_S if start_time is None else start_time
        with tempfile.TemporaryDirectory(prefix="dragon-") as folder:
            return Page(report(Recording(self._client.db_dump(folder)), hosts, since), height)

    def custom_slider(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise NotSupportedError."""
        raise NotSupportedError("the charts of render() are enlarged by dragging over a time; there are no sliders")


class Page:
    """A page in the form that notebooks show: in its own frame, so that the styles of neither affect the other."""

    def __init__(self, text: str, height: int) -> None:
        self.text = text
        self._height = height

    def _repr_html_(self) -> str:
        size = f'width="100%" height="{self._height}"'
        return f'<iframe {size} style="border: 0" sandbox="allow-scripts" srcdoc="{html.escape(self.text)}"></iframe>'
