"""Groups of executables by name."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from conftest import Site
from dragon.globalservices import group, process
from dragon.globalservices.group import GroupError
from dragon.globalservices.process import ProcessCreate
from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.group_desc import GroupDescriptor
from dragon.infrastructure.policy import Policy

ACTIVE, DEAD = process.ProcessDescriptor.State.ACTIVE, process.ProcessDescriptor.State.DEAD


def sleeper(**options: object) -> ProcessCreate:
    return process.get_create_message("sleep", "", ["1000"], None, **options)  # type: ignore[arg-type]


def puids(found: GroupDescriptor) -> list[list[int]]:
    return [[member.uid for member in members] for members in found.sets]


@pytest.fixture(autouse=True)
def no_groups_left() -> Iterator[None]:
    yield
    for number in group.get_list():
        group.destroy(number)


def test_a_group_is_found_by_number_and_by_name() -> None:
    made = group.create([(2, sleeper()), (1, sleeper())], None, "sleepers")
    assert (made.state, made.name) == (GroupDescriptor.State.ACTIVE, "sleepers")
    assert [len(members) for members in made.sets] == [2, 1]
    assert {member.state for members in made.sets for member in members} == {ACTIVE}
    assert group.get_list() == [made.g_uid]
    assert puids(group.query("sleepers")) == puids(group.query(made.g_uid)) == puids(made)


def test_a_group_takes_serialized_messages() -> None:
    made = group.create([(2, sleeper(policy=Policy(cpu_affinity=[0])).serialize())], None, "sleepers")
    assert len(puids(group.create_add_to("sleepers", [(1, sleeper().serialize())], None))) == len(puids(made)) + 1


def test_a_group_without_a_name_is_given_a_name() -> None:
    made = group.create([(1, sleeper())], None)
    assert group.query(made.name).g_uid == made.g_uid


def test_two_groups_cannot_have_the_same_name() -> None:
    made = group.create([(1, sleeper())], None, "sleepers")
    with pytest.raises(GroupError, match="a group 'sleepers' already exists"):
        group.create([(1, sleeper())], None, "sleepers")
    assert group.create([(1, sleeper())], None, "sleepers", soft=True).g_uid == made.g_uid
    with pytest.raises(GroupError, match="needs the user_name of a group"):
        group.create([(1, sleeper())], None, soft=True)


def test_destroying_a_group_ends_its_members() -> None:
    made = group.create([(2, sleeper())], None, "sleepers")
    gone = group.destroy("sleepers")
    assert gone.state == GroupDescriptor.State.DEAD
    assert [(m.state, m.error_code) for m in gone.sets[0]] == [(DEAD, -signal.SIGKILL)] * 2
    assert made.g_uid not in group.get_list()


def test_kill_sends_the_signal_to_every_member() -> None:
    made = group.create([(2, sleeper())], None)
    group.kill(made.g_uid, signal.SIGTERM)
    for puid in puids(made)[0]:
        assert process.join(puid, 60) == -signal.SIGTERM


def test_members_are_added_and_removed() -> None:
    made = group.create([(1, sleeper())], None, "sleepers")
    stranger = process.create("sleep", "", ["1000"], None, "stranger")
    added = group.add_to("sleepers", ["stranger"])
    assert puids(added) == [*puids(made), [stranger.p_uid]]
    more = group.create_add_to("sleepers", [(2, sleeper())], None)
    assert [len(members) for members in more.sets] == [1, 1, 2]
    left = group.remove_from("sleepers", [stranger.p_uid])
    assert [len(members) for members in left.sets] == [1, 0, 2]
    assert process.query("stranger").state == ACTIVE
    (first,) = puids(made)[0]
    assert len(group.destroy_remove_from("sleepers", [first]).sets[0]) == 0
    assert process.query(first).ecode == -signal.SIGKILL
    process.kill("stranger")


def test_the_members_end_if_one_of_them_cannot_be_started() -> None:
    before = set(process.get_list())
    absent = process.get_create_message("no-such-program", "", [], None)
    with pytest.raises(GroupError, match="member 1 of 2 cannot be started: Cannot find executable no-such-program"):
        group.create([(1, sleeper()), (1, absent)], None)
    assert {process.query(puid).state for puid in set(process.get_list()) - before} == {DEAD}
    assert group.get_list() == []


@pytest.mark.parametrize(
    "use",
    [
        group.query,
        group.kill,
        group.destroy,
        lambda name: group.add_to(name, []),
        lambda name: group.create_add_to(name, [], None),
        lambda name: group.remove_from(name, []),
    ],
)
def test_an_unknown_group_is_an_error(use: Callable[[int | str], object]) -> None:
    with pytest.raises(GroupError, match="the run has no group 'missing'"):
        use("missing")
    with pytest.raises(GroupError, match="the run has no group 77"):
        use(77)


def test_a_process_that_is_not_a_member_cannot_be_removed() -> None:
    group.create([(1, sleeper())], None, "sleepers")
    stranger = process.create("sleep", "", ["1000"], None)
    with pytest.raises(GroupError, match=f"not members of group 'sleepers': .{stranger.p_uid}"):
        group.destroy_remove_from("sleepers", [stranger.p_uid])
    with pytest.raises(GroupError, match="no process 'missing'"):
        group.add_to("sleepers", ["missing"])
    process.kill(stranger.p_uid)


@pytest.mark.parametrize("item", ["sleep", (1, "sleep"), (1, ""), (0, sleeper()), (1, sleeper(), 2)])
def test_members_must_be_described_by_a_count_and_a_message(item: object) -> None:
    with pytest.raises(GroupError, match=r"is not \(count, what process.get_create_message\(\) gave\)"):
        group.create([item], None)  # type: ignore[list-item]


def test_a_policy_that_cannot_be_met_is_an_error() -> None:
    nowhere = Policy(placement=Policy.Placement.HOST_NAME, host_name="nowhere")
    with pytest.raises(GroupError, match="no node of this run is called 'nowhere'"):
        group.create([(1, sleeper())], nowhere)


OVER_NODES = """
    import sys
    from dragon.globalservices import group, process
    from dragon.infrastructure.policy import Policy
    from dragon.native.process import Process

    def look():
        found = group.query("spread")
        print(*(member.placement for member in found.sets[0]))
        assert group.query(found.g_uid).name == "spread" and group.get_list() == [found.g_uid]
        group.destroy("spread")

    if __name__ == "__main__":
        made = group.create([(4, process.get_create_message("sleep", "", ["1000"], None))], None, "spread")
        there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
        other = Process(look, policy=there)
        other.start()
        assert other.join() == 0
        assert group.get_list() == []
        assert {process.join(member.uid) for member in made.sets[0]} == {-9}
"""


def test_a_group_is_known_on_all_nodes(site: Site) -> None:
    done = site.run(sys.executable, "-m", "dragon", "--nodes", "2", site.write(OVER_NODES))
    assert (done.stdout, done.stderr) == ("0 1 0 1\n", "")


def test_members_with_pmi_are_the_ranks_of_a_job() -> None:
    script = ["-c", "echo rank ${PMI_RANK:-$PMIX_RANK}"]
    message = process.get_create_message(
        "sh", "", script, None, stdout=process.DEVNULL, pmi=PMIBackend.from_str("pmi1")
    )
    made = group.create([(2, message), (1, message)], None, "job")
    assert [len(members) for members in made.sets] == [2, 1]
    for puid in (puid for members in puids(made) for puid in members):
        assert process.join(puid, timeout=60) == 0
    assert group.destroy("job").state == GroupDescriptor.State.DEAD


def test_members_of_a_group_with_different_pmi_are_refused() -> None:
    with pytest.raises(GroupError, match="must have the same pmi="):
        group.create([(1, sleeper(pmi="pmi1")), (1, sleeper())], None)
