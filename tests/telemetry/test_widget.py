"""The charts of a run in a notebook."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from dragon.infrastructure.errors import NotSupportedError
from dragon.telemetry import AnalysisClient, NoRecordingError, Telemetry
from dragon.telemetry.widget import DragonTelemetryWidget


@pytest.fixture(autouse=True)
def _loss(telemetry: Telemetry) -> None:
    telemetry.add_data("loss", 0.25)


def test_the_widget_returns_the_same_as_the_client(telemetry: Telemetry) -> None:
    widget = DragonTelemetryWidget()
    widget.connect()
    assert widget.get_metrics() == ["loss"]
    assert widget.get_data("loss") == AnalysisClient().get_data("loss")
    assert 0 < widget.get_start_time() < time.time()


def test_the_charts_are_shown_in_a_frame(telemetry: Telemetry, tmp_path: Path, browser: Any) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(DragonTelemetryWidget().render()._repr_html_())
    browser.goto(f"file://{notebook}")
    frame = browser.frame_locator("iframe")
    frame.get_by_text("loss", exact=True).first.wait_for()


def test_a_recording_is_shown_like_a_run(telemetry: Telemetry, tmp_path: Path) -> None:
    widget = DragonTelemetryWidget(AnalysisClient().db_dump(tmp_path))
    assert widget.get_metrics() == ["loss"]
    assert widget.get_start_time() == DragonTelemetryWidget().get_start_time()
    assert '"loss"' in widget.render().text


def test_the_charts_can_begin_later_than_the_run(telemetry: Telemetry) -> None:
    start = DragonTelemetryWidget().get_start_time()
    # Without one they begin with the run, or ten minutes ago.
    assert f'"started":{start}' in DragonTelemetryWidget().render(start_time=start).text
    assert f'"started":{start + 0.001}' in DragonTelemetryWidget().render(start_time=start + 0.001).text


def test_an_unsupported_view_is_an_error(telemetry: Telemetry) -> None:
    with pytest.raises(NoRecordingError, match="no node 'elsewhere'"):
        DragonTelemetryWidget().render(["elsewhere"])
    with pytest.raises(NotSupportedError, match="dragging over a time"):
        DragonTelemetryWidget().custom_slider()
    telemetry.shutdown()
    with pytest.raises(RuntimeError, match="the run has no telemetry"):
        DragonTelemetryWidget().render()
