"""The C++ tests of the core, built without and with each sanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=500
    )


def _sanitizer_works(compiler: str, sanitizer: str, folder: Path) -> bool:
    program = folder / "program.cpp"
    program.write_text("int main() {}\n")
    binary = str(folder / "program")
    built = _run([compiler, f"-fsanitize={sanitizer}", str(program), "-o", binary]).returncode == 0
    return built and _run([binary]).returncode == 0


@pytest.mark.parametrize("sanitizer", ["", "address,undefined", "thread"])
def test_core_tests_pass_with_each_sanitizer(sanitizer: str, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if compiler is None or cmake is None:
        pytest.skip("needs a C++ compiler and CMake")
    if sanitizer and not _sanitizer_works(compiler, sanitizer, tmp_path):
        pytest.skip(f"{compiler} has no runtime for -fsanitize={sanitizer} that works here")
    build = tmp_path / "build"
    options = ["-DDRAGON_CORE_TESTS=ON", f"-DDRAGON_SANITIZER={sanitizer}", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"]
    configured = _run([cmake, "-S", str(SOURCE), "-B", str(build), *options])
    assert configured.returncode == 0, configured.stdout
    built = _run([cmake, "--build", str(build), "--parallel", "2"])
    assert built.returncode == 0, built.stdout
    assert "warning:" not in built.stdout, built.stdout
    tested = _run([str(build / "core_tests")])
    print(tested.stdout)
    assert tested.returncode == 0, tested.stdout
