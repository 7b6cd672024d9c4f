"""For programs of CPython's tests that know nothing of us: "dragon" is a start method from the beginning."""

from __future__ import annotations

import dragon  # noqa: F401
