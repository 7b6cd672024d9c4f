"""`python -m torchloader` is the `torchloader` command."""

from torchloader.cli.main import run_and_exit

if __name__ == "__main__":
    run_and_exit()
