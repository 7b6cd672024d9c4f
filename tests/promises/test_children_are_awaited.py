"""A main program that ends waits for its children, as with the standard start methods."""

from __future__ import annotations

from conftest import Site


def test_children_that_are_no_daemons_are_awaited(site: Site) -> None:
    done = site.python(
        """
        import multiprocessing as mp
        import time
        import dragon

        def work():
            time.sleep(0.5)
            print("finished")

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            mp.Process(target=work).start()
        """
    )
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr
