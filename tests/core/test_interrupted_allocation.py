"""Older kernels end the allocation of memory for any signal. A library that does so is loaded before the C library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import Site

INTERRUPTING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>

static _Thread_local int calls;

int posix_fallocate(int fd, off_t start, off_t length) {
    if (calls++ % 2 == 0) return EINTR;
    int (*real)(int, off_t, off_t) = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
    return real(fd, start, length);
}

int posix_fallocate64(int fd, off_t start, off_t length) { return posix_fallocate(fd, start, length); }
"""


def test_an_interrupted_allocation_is_repeated(site: Site, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "interrupting.c", tmp_path / "interrupting.so"
    source.write_text(INTERRUPTING)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    done = site.python(
        """
        from dragon import _core
        from dragon.native.queue import Queue

        queue = Queue()
        queue.put(bytes(3_000_000))
        print(len(queue.get()), _core.tracing())
        """,
        env={"LD_PRELOAD": str(library), "DRAGON_TELEMETRY_LEVEL": "5"},
    )
    assert (done.stdout, done.stderr) == ("3000000 True\n", "")
