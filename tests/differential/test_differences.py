"""Random programs have the same results with Dragon and the standard library. run.py and run_whole.py draw more."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings

from conftest import Site
from differential.compare import differences
from differential.known import KNOWN
from differential.programs import programs
from differential.run_whole import difference
from differential.ways import OURS, all_ways
from differential.whole_programs import drawn

GUIDE = Path(__file__).parents[2] / "docs" / "from_multiprocessing.md"
# Each worker of pytest has its own share of them. The seeds are fixed: what fails can be run again.
SEEDS, EACH = range(4), 12


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_has_the_same_result_as_with_the_standard_library(site: Site, seed: int) -> None:
    with all_ways(site.environment) as ways:

        @hypothesis.seed(seed)
        @settings(
            max_examples=EACH,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(programs)
        def each(program: dict[str, Any]) -> None:
            # What a busy machine made of a program once, as a time-out that came too soon, is no difference.
            assert not differences(ways, program) or differences(ways, program) == [], program

        each()


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_whole_programs_have_the_same_output_and_exit_code_as_with_the_standard_library(seed: int) -> None:
    for program in drawn(3, seed):
        with tempfile.TemporaryDirectory() as folder:
            ways = list(OURS)
            assert not difference(program, Path(folder), ways) or difference(program, Path(folder), ways) == []


@pytest.mark.parametrize("name", KNOWN)
def test_the_guide_lists_all_intended_differences(name: str) -> None:
    assert f"`{name}`" in GUIDE.read_text()
