"""Headless Chromium, which shows the pages that a run serves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["browser"]


@pytest.fixture
def browser() -> Iterator[Any]:
    """Provide a page in a browser. Errors in the page's scripts fail the test."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    wrong: list[str] = []
    with api.sync_playwright() as player:
        opened = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": 1280, "height": 1000})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        yield page
        opened.close()
    # Requests to a run that has ended fail.
    wrong = [text for text in wrong if "net::ERR_" not in text]
    assert wrong == []
