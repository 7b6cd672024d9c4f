"""Intel's library as level_zero.c has it, found in place of the real one by the bindings that look for it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["level_zero", "loader_folder"]


@pytest.fixture(scope="session")
def loader_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the library is, as one would name it in LD_LIBRARY_PATH."""
    folder = tmp_path_factory.mktemp("level_zero")
    source, soname = Path(__file__).with_name("level_zero.c"), "libze_loader.so.1"
    options = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{soname}"]
    subprocess.run(["cc", *options, "-o", folder / soname, source], check=True)
    return folder


@pytest.fixture
def level_zero(loader_folder: Path) -> Iterator[ctypes.CDLL]:
    """The library, loaded: by its name the linker gives everybody this one. Its fake_ functions are the tests'."""
    library = ctypes.CDLL(str(loader_folder / "libze_loader.so.1"))
    library.fake_pass.argtypes = [ctypes.c_uint64]
    library.fake_reset()
    sys.modules.pop("pyzes", None)
    yield library
    sys.modules.pop("pyzes", None)  # nothing else is to find these devices
