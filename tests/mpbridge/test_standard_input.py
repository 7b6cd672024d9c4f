"""A process of multiprocessing reads nothing from stdin, as with every other start method."""

from __future__ import annotations

import pytest

from conftest import Site


@pytest.mark.parametrize("before", ["", "sys.stdin.close()", "sys.stdin = io.StringIO('of the main program')"])
def test_stdin_of_a_process_is_empty_whether_or_not_the_main_program_replaced_its_own(site: Site, before: str) -> None:
    source = f"""
        import io
        import multiprocessing as mp
        import sys
        import dragon

        {before}

        def work():
            print(repr(sys.stdin.read()))

        if __name__ == "__main__":
            process = mp.get_context("dragon").Process(target=work)
            process.start()
            process.join()
    """
    done = site.python(source)
    assert (done.stdout, done.stderr) == ("''\n", "")
