"""Runs the `torchloader` command for `python -m torchloader`."""

from torchloader.cli.main import run_and_exit

if __name__ == "__main__":
    run_and_exit()
