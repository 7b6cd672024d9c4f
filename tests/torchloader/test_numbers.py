"""Invalid numbers and files, which argparse rejects."""

from __future__ import annotations

import pytest

from torchloader.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("simulate --stop inf", "argument --stop: 'inf' is not a number from 0 to 1000000000"),
        ("simulate --stop -1", "argument --stop: '-1' is not a number from 0 to 1000000000"),
        ("simulate --start inf", "argument --start: 'inf' is not a number from 0 to 1000000000"),
        ("simulate --minutes inf", "argument --minutes: 'inf' is not a number from 0.000001 to 1000000000"),
        ("simulate --load nan", "argument --load: 'nan' is not a number from 0.000001 to 1000000000"),
        ("simulate --load 1e-300", "argument --load: '1e-300' is not a number from 0.000001 to 1000000000"),
        ("simulate --error 1000", "argument --error: '1000' is not a number from 0.000001 to 10"),
        ("simulate --jobs 0", "argument --jobs: '0' is not a whole number of at least 1"),
        ("simulate --jobs many", "argument --jobs: 'many' is not a whole number of at least 1"),
        ("run jobs.csv --retries -1", "argument --retries: '-1' is not a whole number of at least 0"),
        ("run jobs.csv --silence 0", "argument --silence: '0' is not a number from 0.000001 to 1000000000"),
        ("run jobs.csv --silence nan", "argument --silence: 'nan' is not a number from 0.000001 to 1000000000"),
        ("run jobs.csv --machine '", "argument --machine: cannot be split into words as a shell does it: No closing"),
        ("profile job.toml --seconds 0", "argument --seconds: '0' is not a number from 0.000001 to 1000000000"),
        ("profile job.toml --workers 0", "argument --workers: '0' is not a whole number of at least 1"),
        ("profile job.toml --out /no/such/f", "argument --out: there is no folder /no/such"),
        ("profile job.toml --out /tmp", "argument --out: /tmp is a folder"),
        ("profile job.toml --plot a.txt", "argument --plot: a.txt must end with one of .png .svg .pdf"),
    ],
)
def test_invalid_numbers_are_refused_at_once(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert f"torchloader {words.split(maxsplit=1)[0]}: error: {told}" in capsys.readouterr().err.splitlines()[-1]
