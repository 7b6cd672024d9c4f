"""A pytest plug-in for suites that run within a run: it leaves out tests that start programs of their own."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if "site" not in getattr(item, "fixturenames", ())]
