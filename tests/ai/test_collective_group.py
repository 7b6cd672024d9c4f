"""Ranks of torch.distributed as process groups."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from conftest import Site
from dragon.ai.collective_group import CollectiveGroup, RankInfo
from dragon.infrastructure.policy import Policy
from dragon.native.process_group import DragonUserCodeError

RANKS = Path(__file__).parent / "ranks.py"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def fail() -> None:
    raise ValueError(f"rank {RankInfo().my_rank} cannot")


def test_ranks_reduce_together(site: Site) -> None:
    done = site.dragon("-s", RANKS, "3", str(free_port()))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3, {rank} of 3 on node 0: 60" for rank in range(3)]


def test_ranks_of_several_nodes_know_their_node(site: Site) -> None:
    done = site.dragon("--nodes", "2", "--no-label", RANKS, "3", str(free_port()))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 of 3, 0 of 2 on node 0: 60",
        "rank 1 of 3, 0 of 1 on node 1: 60",
        "rank 2 of 3, 1 of 2 on node 0: 60",
    ]


def test_a_list_of_policies_gives_a_rank_each() -> None:
    group = CollectiveGroup(fail, hide_stderr=True, policies=[Policy(cpu_affinity=[0])] * 2)
    group.start()
    assert len(group.puids) == 2
    with pytest.raises(DragonUserCodeError, match=r"rank [01]"):
        group.join()
    group.close()


def test_the_number_of_ranks_must_be_known_without_gpus() -> None:
    with pytest.raises(ValueError, match="pass nprocs"):
        CollectiveGroup(fail)


@pytest.mark.parametrize("wrong", [{"nprocs": 0}, {"nprocs": 1, "port": 70000}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"0|70000"):
        CollectiveGroup(fail, **wrong)


@pytest.mark.parametrize("wrong", [{"nprocs": "two"}, {"policies": 5}, {"policies": ["gpu"]}])
def test_arguments_of_another_kind_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"{next(iter(wrong))} must be .*, not "):
        CollectiveGroup(fail, **wrong)


def test_a_process_that_is_no_rank_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="not a rank of a CollectiveGroup"):
        RankInfo()
