"""The main program of a run that other programs attach to: prints its descriptor, and ends with its standard input."""

import sys

from dragon.runtime.run import this_run
from dragon.workflows.runtime import current_runtime

if __name__ == "__main__":
    this_run()
    here = current_runtime()
    assert here is not None
    print(here.sdesc, flush=True)
    sys.stdin.read()
