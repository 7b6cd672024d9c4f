"""A sweep over numbers of workers, shown as text and as a picture."""

from __future__ import annotations

import io
import xml.etree.ElementTree

import pytest

from torchloader.cli.profile import Point, chosen, drawn, picture, summary
from torchloader.prediction.curve import Curve, sufficient

CURVE = Curve(769.1, 0.01015)
POINTS = [
    Point(1, 97.9, 0.87, 10.0),
    Point(2, 197.1, 0.75, 10.0),
    Point(4, 397.0, 0.49, 10.0),
    Point(8, 773.3, 0.0, 10.0),
    Point(12, 774.8, 0.0, 10.0),
]


def test_the_smallest_number_that_suffices_is_chosen() -> None:
    assert chosen(POINTS) == 8
    assert sufficient({1: 97.0, 2: 100.0}) == 1
    assert sufficient({1: 96.9, 2: 100.0}) == 2
    assert sufficient({2: 50.0, 4: 100.0, 8: 60.0}) == 4


def test_a_table_has_a_bar_for_each_rate_and_a_mark_at_the_chosen_number() -> None:
    head, *rows = drawn(POINTS, CURVE).splitlines()
    assert head.split() == ["workers", "samples/s", "waiting", "fitted"]
    assert rows[0].split()[:4] == ["1", "97.9", "87%", "98.5"]
    assert [row.count("█") for row in rows] == [5, 10, 20, 39, 40]
    assert [row.endswith("<- enough") for row in rows] == [False, False, False, True, False]


def test_a_table_for_ascii_has_bars() -> None:
    text = drawn(POINTS, CURVE, "ascii")
    assert text.isascii()
    assert [row.count("#") for row in text.splitlines()[1:]] == [5, 10, 20, 40, 40]


def test_a_line_summarizes_the_sweep() -> None:
    assert summary(POINTS, CURVE) == (
        "a device computes 769.1 samples/s; a sample takes 10.15 ms of a worker and 0.00 ms of what they share; "
        "8 workers are enough"
    )
    assert summary(POINTS, Curve(600.0, 0.01)).endswith("8 workers are enough, and by the fitted curve 6")
    assert summary(POINTS[:1], CURVE).endswith("1 worker is enough")


def test_a_number_far_above_the_measured_ones_is_not_recommended() -> None:
    held_up = [Point(1, 95.0, 0.9, 10.0), Point(4, 100.0, 0.9, 10.0), Point(8, 100.0, 0.9, 10.0)]
    assert summary(held_up, Curve(1000.0, 0.0005, 0.01)).endswith("4 workers are enough")


def test_a_picture_shows_the_curve_and_the_chosen_number() -> None:
    pytest.importorskip("matplotlib")
    image = io.BytesIO()
    picture(POINTS, CURVE).savefig(image, format="svg")
    assert xml.etree.ElementTree.fromstring(image.getvalue()).tag.endswith("svg")
    (axis,) = picture(POINTS, CURVE).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["fitted curve", "measured", "enough: 8"]
