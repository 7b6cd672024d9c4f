"""Invalid numbers and files, which argparse rejects."""

from __future__ import annotations

import pytest

from torchloader.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("simulate --stop inf", "argument --stop: must be a number from 0 to 1000000000, not inf"),
        ("simulate --stop -1", "argument --stop: must be a number from 0 to 1000000000, not -1"),
        ("simulate --start inf", "argument --start: must be a number from 0 to 1000000000, not inf"),
        ("simulate --start -1", "argument --start: must be a number from 0 to 1000000000, not -1"),
        ("simulate --minutes inf", "argument --minutes: must be a number from 0.000001 to 1000000000, not inf"),
        ("simulate --load nan", "argument --load: must be a number from 0.000001 to 1000000000, not nan"),
        ("simulate --load 1e-300", "argument --load: must be a number from 0.000001 to 1000000000, not 1e-300"),
        ("simulate --error 1000", "argument --error: must be a number from 0.000001 to 10, not 1000"),
        ("simulate --jobs 0", "argument --jobs: must be a whole number of at least 1, not 0"),
        ("simulate --jobs many", "argument --jobs: must be a whole number of at least 1, not many"),
        ("run jobs.csv --retries -1", "argument --retries: must be a whole number of at least 0, not -1"),
        ("run jobs.csv --silence 0", "argument --silence: must be a number from 0.000001 to 1000000000, not 0"),
        ("run jobs.csv --silence nan", "argument --silence: must be a number from 0.000001 to 1000000000, not nan"),
        ("run jobs.csv --machine '", "argument --machine: cannot be split into words as a shell does it: No closing"),
        ("profile job.toml --seconds 0", "argument --seconds: must be a number from 0.000001 to 1000000000, not 0"),
        ("profile job.toml --workers 0", "argument --workers: must be a whole number of at least 1, not 0"),
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
