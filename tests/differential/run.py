"""Draw programs, run each with the standard library and with Dragon, and report the differences.

python tests/differential/run.py --programs 5000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, given, settings

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.compare import differences
from differential.programs import programs
from differential.ways import all_ways


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=5000, help="how many are drawn (default: 5000)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: 0)")
    arguments = parser.parse_args()
    seen: dict[str, dict[str, Any]] = {}
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        with all_ways(environment) as ways:

            @hypothesis.seed(arguments.seed)
            @settings(
                max_examples=arguments.programs,
                deadline=None,
                database=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(programs)
            def each(program: dict[str, Any]) -> None:
                nonlocal count
                count += 1
                # A difference that occurs once, such as a timeout on a busy machine, does not count.
                for difference in differences(ways, program) and differences(ways, program):
                    if difference.partition(": ")[2] not in {known.partition(": ")[2] for known in seen}:
                        seen[difference] = program
                        print(f"{difference}\n    {json.dumps(program)}", flush=True)
                if count % 100 == 0:
                    print(f"{count} programs, {len(seen)} differences", file=sys.stderr, flush=True)

            each()
    print(f"{count} programs, {len(seen)} differences")
    return bool(seen)


if __name__ == "__main__":
    raise SystemExit(main())
