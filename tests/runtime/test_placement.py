"""The choice of a node, CPUs and devices by a policy, with described nodes."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import SetNodes, Site, described
from dragon.infrastructure.policy import Policy, PolicyError, choose
from dragon.runtime import placement
from dragon.runtime.placement import Placed, one_warning, place

HOST_NAME, HOST_ID = Policy.Placement.HOST_NAME, Policy.Placement.HOST_ID
BLOCK, ROUNDROBIN = Policy.Distribution.BLOCK, Policy.Distribution.ROUNDROBIN


def on(name: str, **fields: object) -> Policy:
    return Policy(placement=HOST_NAME, host_name=name, **fields)  # type: ignore[arg-type]


def group(*policies: Policy | None, policy: Policy | None = None) -> list[Placed]:
    """Return the places of a group with one member for each policy."""
    members = placement.members("g", [Policy.merge(policy, p) for p in policies])
    return [place(p, policy, member=member) for p, member in zip(policies, members, strict=True)]


def indices(placed: list[Placed]) -> list[int]:
    return [p.node.index for p in placed]


# ---- devices


@pytest.fixture
def one_node(set_nodes: SetNodes) -> None:
    set_nodes(described(7), own=7)


@pytest.mark.usefixtures("one_node")
def test_gpus_are_assigned_with_the_variable_of_the_vendor() -> None:
    placed = place(Policy(gpu_affinity=[3, 1], cpu_affinity=[2]))
    assert placed.cpus == [2]
    assert placed.environment == {"CUDA_VISIBLE_DEVICES": "3,1"}


@pytest.mark.usefixtures("one_node")
def test_a_policy_can_name_another_variable_for_gpus() -> None:
    assert place(Policy(gpu_affinity=[0], gpu_env_str="MY_DEVICES")).environment == {"MY_DEVICES": "0"}


@pytest.mark.usefixtures("one_node")
def test_nothing_is_set_without_a_policy() -> None:
    placed = place(None)
    assert (placed.cpus, placed.mask, placed.environment) == ([], [], {})


def test_devices_have_the_names_of_the_jobs_mask(set_nodes: SetNodes) -> None:
    set_nodes(described(0, gpus=2, gpu_names=["GPU-aaaa", "GPU-bbbb"]))
    assert place(Policy(gpu_affinity=[1])).environment == {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}


def test_a_tile_is_a_fraction_of_a_device(set_nodes: SetNodes) -> None:
    set_nodes(described(0, gpus=6, gpu_vendor="intel"))
    assert place(Policy(gpu_affinity=[float("0.1"), 5.0])).environment == {"ZE_AFFINITY_MASK": "0.1,5.0"}
    assert place(Policy(gpu_affinity=[2])).environment == {"ZE_AFFINITY_MASK": "2"}
    with pytest.warns(RuntimeWarning, match=r"no GPUs 6\.1 \(there are 0-5\)"):
        assert place(Policy(gpu_affinity=[6.1])).environment == {}


@pytest.mark.usefixtures("one_node")
def test_missing_devices_are_left_out_with_one_warning() -> None:
    with pytest.warns(RuntimeWarning, match=r"no CPUs 4-7 \(there are 0-3\) and no GPUs 9 \(there are 0-3\)"):
        placed = place(Policy(cpu_affinity=list(range(2, 8)), gpu_affinity=[0, 9]))
    assert placed.cpus == [2, 3]
    assert placed.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    place(Policy(cpu_affinity=[4, 5]))  # named already: a second warning would be an error here


def test_a_warning_of_missing_devices_is_at_the_users_line(site: Site) -> None:
    program = """
        import multiprocessing as mp
        import dragon
        from dragon.infrastructure.policy import Policy

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with Policy(cpu_affinity=[9999]):
                process = mp.Process(target=print)
                process.start()  # the line
                process.join()
    """
    assert "process.start()  # the line\n" in site.python(program).stderr


@pytest.mark.usefixtures("one_node")
def test_several_placements_can_have_a_common_warning() -> None:
    with pytest.warns(RuntimeWarning, match="no CPUs 4, 5 ") as caught:
        place_together(Policy(cpu_affinity=[4]), Policy(cpu_affinity=[5]))
    assert len(caught) == 1


def place_together(*policies: Policy) -> None:
    with one_warning():
        group(*policies)


def test_nodes_without_the_same_devices_have_a_common_warning(set_nodes: SetNodes) -> None:
    set_nodes(*(described(i) for i in range(3)))
    with pytest.warns(RuntimeWarning, match=r"node0\S+, node1\S+, node2\S+ have no CPUs 9 ") as caught:
        place_together(*[Policy(cpu_affinity=[9])] * 3)
    assert len(caught) == 1


@pytest.mark.usefixtures("one_node")
def test_missing_devices_raise_an_error_with_dragon_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGON_STRICT", "1")
    with pytest.raises(PolicyError, match="no GPUs 9"):
        place(Policy(gpu_affinity=[9]))


def test_affinities_are_checked_against_the_chosen_node(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1, cpus=8, gpus=8))
    assert place(on("node1", cpu_affinity=[7], gpu_affinity=[7])).cpus == [7]


def test_cpus_of_a_simulated_node_are_mapped_onto_existing_cpus(set_nodes: SetNodes) -> None:
    set_nodes(described(0, cpus=32, real_cpus=[2, 5]))
    placed = place(Policy(cpu_affinity=[8, 9, 10]))
    assert (placed.cpus, placed.mask) == ([8, 9, 10], [2, 5])
    assert place(Policy(cpu_affinity=[9])).mask == [5]


# ---- a node by name


@pytest.mark.parametrize("name", ["node1", "node1.cluster.org", "NODE1.cluster"])
def test_short_and_full_names_mean_the_same_host(set_nodes: SetNodes, name: str) -> None:
    set_nodes(described(0), described(1))
    assert place(on(name)).node.index == 1
    assert place(Policy(host_name=name)).node.index == 1


def test_localhost_is_the_node_of_the_caller(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1), own=1)
    assert place(on("localhost")).node.index == 1
    assert place(Policy(placement=Policy.Placement.LOCAL)).node.index == 1


def test_a_full_name_is_preferred_to_a_short_one(set_nodes: SetNodes) -> None:
    set_nodes(described(0, host_name="node.west.org"), described(1, host_name="node"))
    assert place(on("node")).node.index == 1
    assert place(on("node.west.org")).node.index == 0


def test_an_unknown_node_is_refused(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1))
    assert place(Policy(placement=HOST_ID, host_id=101)).node.index == 1
    with pytest.raises(PolicyError, match=r"host id 8; there is node0\.cluster\.org, node1\.cluster\.org"):
        place(Policy(placement=HOST_ID, host_id=8))
    with pytest.raises(PolicyError, match=r"called 'node11'; there is node0"):
        place(on("node11"))


def test_a_lost_node_is_not_used(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1), described(2))
    assert indices(group(None, None, None)) == [0, 1, 2]
    set_nodes(described(0), described(2))
    assert indices(group(None, None, None)) == [0, 2, 0]
    with pytest.raises(PolicyError, match="node1"):
        place(on("node1"))


# ---- over several nodes


def test_single_processes_are_placed_round_robin_from_the_node_of_the_caller(
    set_nodes: SetNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_nodes(described(0), described(1), described(2), own=1)
    monkeypatch.setattr(placement, "_singles", iter(range(10)))
    assert indices([place(None) for _ in range(5)]) == [1, 2, 0, 1, 2]


def test_members_without_a_chosen_node_are_spread_independently_of_the_others(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1))
    placed = group(None, on("node1"), None, on("node1"), None, on("node0"), None)
    assert indices(placed) == [0, 1, 1, 1, 0, 0, 1]


def test_block_distribution_fills_one_node_after_the_other(set_nodes: SetNodes) -> None:
    set_nodes(described(0, cpus=2), described(1, cpus=3))
    assert indices(group(*[None] * 8, policy=Policy(distribution=BLOCK))) == [0, 0, 1, 1, 1, 0, 1, 0]


def test_policies_of_templates_groups_and_threads_are_merged_in_this_order(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1))
    below = Policy(gpu_affinity=[1], cpu_affinity=[1], gpu_env_str="BELOW")
    with below:
        (placed,) = group(on("node0"), policy=on("node1", cpu_affinity=[2]))
    assert (placed.node.index, placed.cpus, placed.environment["BELOW"]) == (0, [2], "1")
    assert (placed.named, placed.source) == (True, "template")
    assert group(None, policy=on("node1"))[0].source == "group"
    with on("node1"):
        assert place(None).source == "thread"
    assert place(None).source == "global"


def test_the_policy_of_a_with_block_applies_to_children_of_children(
    set_nodes: SetNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_nodes(described(0), described(1))
    with on("node1", cpu_affinity=[1]):
        inherited = place(None).environment
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)
    assert (place(None).node.index, place(None).cpus) == (1, [1])
    with Policy(cpu_affinity=[2]):
        assert (place(None).node.index, place(None).cpus) == (1, [2])


def test_a_member_keeps_the_policy_of_the_thread_that_created_the_group(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1))
    with on("node1"):
        (member,) = placement.members("pool", [None])
    found: list[Placed] = []

    def start_again() -> None:
        with placement.as_member(member):
            found.append(place(None))

    thread = threading.Thread(target=start_again)
    thread.start()
    thread.join()
    assert (found[0].node.index, found[0].group, found[0].rank) == (1, "pool", 0)


# ---- the arithmetic

clusters = st.lists(st.integers(1, 6), min_size=1, max_size=6).map(
    lambda sizes: [described(index, cpus=cpus) for index, cpus in enumerate(sizes)]
)


@given(clusters, st.integers(0, 60), st.integers(0, 5))
def test_round_robin_counts_differ_by_at_most_one_between_nodes(nodes: list, count: int, start: int) -> None:  # type: ignore[type-arg]
    chosen = [choose(nodes, i, ROUNDROBIN, start % len(nodes)).index for i in range(count)]
    counts = [chosen.count(node.index) for node in nodes]
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1
    assert not chosen or chosen[0] == start % len(nodes)


@given(clusters, st.integers(0, 60))
def test_block_distribution_uses_all_cpus_of_a_node_before_the_next(nodes: list, count: int) -> None:  # type: ignore[type-arg]
    chosen = [choose(nodes, i, BLOCK).index for i in range(count)]
    total = sum(node.num_cpus for node in nodes)
    assert chosen[:total] == sorted(chosen[:total])
    counts = [chosen[:total].count(node.index) for node in nodes]
    for node, used, following in zip(nodes, counts, [*counts[1:], 0], strict=True):
        assert used <= node.num_cpus
        assert used == node.num_cpus or following == 0
    beyond = [chosen[total:].count(node.index) for node in nodes]
    assert max(beyond) - min(beyond) <= 1
