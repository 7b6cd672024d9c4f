"""Process groups whose members are ranks of torch.distributed."""

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


def test_ranks_reduce_a_sum(site: Site) -> None:
    done = site.dragon("-s", RANKS, "3", str(free_port()))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3, {rank} of 3 on node 0: 60" for rank in range(3)]


def test_ranks_of_several_nodes_know_their_node_and_local_rank(site: Site) -> None:
    done = site.dragon("--nodes", "2", "--no-label", RANKS, "3", str(free_port()))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 of 3, 0 of 2 on node 0: 60",
        "rank 1 of 3, 0 of 1 on node 1: 60",
        "rank 2 of 3, 1 of 2 on node 0: 60",
    ]


def test_a_list_of_policies_starts_a_rank_for_each_policy() -> None:
    group = CollectiveGroup(fail, hide_stderr=True, policies=[Policy(cpu_affinity=[0])] * 2)
    group.start()
    assert len(group.puids) == 2
    with pytest.raises(DragonUserCodeError, match=r"rank [01]"):
        group.join()
    group.close()


def test_the_number_of_ranks_must_be_given_without_gpus() -> None:
    with pytest.raises(ValueError, match="pass nprocs"):
        CollectiveGroup(fail)


@pytest.mark.parametrize("wrong", [{"nprocs": 0}, {"nprocs": 1, "port": 70000}])
def test_invalid_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"0|70000"):
        CollectiveGroup(fail, **wrong)


@pytest.mark.parametrize("wrong", [{"nprocs": "two"}, {"policies": 5}, {"policies": ["gpu"]}])
def test_the_error_for_a_wrong_type_names_the_argument(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"{next(iter(wrong))} must be .*, not "):
        CollectiveGroup(fail, **wrong)


def test_rank_info_is_an_error_in_a_process_that_is_not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="not a rank of a CollectiveGroup"):
        RankInfo()
