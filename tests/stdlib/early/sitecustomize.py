"""Register the start method "dragon" at interpreter start, for programs of CPython's tests that do not import
dragon.
"""

from __future__ import annotations

import dragon  # noqa: F401
