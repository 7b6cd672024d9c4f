"""Runs that serve a page."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import Site
from peers import dragon

__all__ = ["get", "serving"]


@contextmanager
def serving(site: Site, word: str, *words: str | Path, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a program that prints a word when it has begun and ends with its standard input; yield the link to the page
    that the run prints.
    """
    process = site.start(*dragon(*words), env=env or {}, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    found = re.fullmatch(r"dragon: .* (http://127\.0\.0\.1:\d+/\S+)\n", process.stderr.readline())
    assert found is not None
    while process.stdout.readline() != f"{word}\n":
        assert process.poll() is None
    try:
        yield found[1]
    finally:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def get(address: str, token: str) -> str:
    """Return the reply of the server to a request with the token."""
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())
