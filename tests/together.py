"""Several behaviours that one run shows: a program whose functions `check_...` are called one after another."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

from conftest import Site

__all__ = ["Failures", "failures"]


class Failures(dict[str, str]):
    """What went wrong, by function, and what the run wrote to its standard error."""

    stderr: str


_CALL = """
if __name__ == "__main__":
    import json, traceback

    for name, check in [(name, check) for name, check in globals().items() if name.startswith("check_")]:
        try:
            check()
            print(json.dumps(["done", name, ""]), flush=True)
        except Exception:
            print(json.dumps(["done", name, traceback.format_exc()]), flush=True)
"""


def failures(
    site: Site, source: str, *words: str | Path, command: bool = True, timeout: float = 100, **variables: str
) -> Failures:
    """Run a program whose functions `check_...` are called in their order, and return what went wrong, by function.

    Args:
        site: Where it runs.
        source: The program, without its call of the functions.
        words: Options of the `dragon` command, before the program.
        command: Whether the `dragon` command runs it, or else plain Python.
        timeout: Seconds for all of them.
        variables: Environment variables.
    """
    program = site.write(textwrap.dedent(source) + _CALL)
    run = site.dragon if command else site.run
    start = [*words, program] if command else [sys.executable, program]
    done = run(*start, env=variables, timeout=timeout)
    outcomes = dict.fromkeys(re.findall(r"^def (check_\w+)", textwrap.dedent(source), re.MULTILINE), "not reached")
    for line in done.stdout.splitlines():
        if line.startswith('["done"'):
            _, name, outcome = json.loads(line)
            outcomes[name] = outcome
    assert outcomes, "the program has no function check_..."
    found = Failures({name: outcome for name, outcome in outcomes.items() if outcome})
    found.stderr = done.stderr
    if done.returncode:
        found["the run"] = f"exit code {done.returncode}\n{done.stderr}"
    return found
