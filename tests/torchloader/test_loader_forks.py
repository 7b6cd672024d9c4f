"""A trainer that is forked while its loader is in use."""

from __future__ import annotations

from conftest import Site

PROGRAM = """
import os
import signal
import sys
import warnings

sys.modules["torch"] = None  # nothing here needs it, and every process would import it

from torchloader import ElasticDataLoader

if __name__ == "__main__":
    loader = ElasticDataLoader(range(400), batch_size=4, num_workers=2, collate_fn=list)
    batches = iter(loader)
    samples = next(batches)
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads, from Python 3.12 on
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert samples + sum(batches, []) == list(range(400))
    assert loader.counters.replaced == 0
"""


def test_a_forked_child_that_ends_does_not_end_the_workers_of_the_loader(site: Site) -> None:
    done = site.python(PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
