"""Managers of multiprocessing over Dragon's channels."""

from __future__ import annotations

import multiprocessing as mp

import pytest

import dragon  # noqa: F401 - registers the start method
from conftest import Site

context = mp.get_context("dragon")


def test_a_proxy_raises_an_error_after_the_end_of_its_manager() -> None:
    with context.Manager() as manager:
        kept = manager.list()
    with pytest.raises((ConnectionError, EOFError)):
        kept.append(1)


def test_managers_of_a_run_over_two_nodes_start_without_a_warning(site: Site) -> None:
    program = site.write(
        """
        import multiprocessing as mp
        from multiprocessing.managers import BaseManager
        import dragon

        class Own(BaseManager):
            pass

        Own.register("numbers", list)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            for number in range(2):
                with mp.Manager() as manager, Own() as own:
                    shared = manager.list([number])
                    shared.append(own.numbers((2, 3)).pop())
                    print(shared)
        """
    )
    done = site.dragon("--nodes", "2", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 3]\n[1, 3]\n", "")
