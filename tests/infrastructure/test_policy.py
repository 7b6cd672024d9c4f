"""Policies: their description, their combination and their checks."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragon.infrastructure.policy import Policy, PolicyError

policies = st.builds(
    Policy,
    placement=st.sampled_from([Policy.Placement.LOCAL, Policy.Placement.ANYWHERE, Policy.Placement.DEFAULT]),
    distribution=st.sampled_from(Policy.Distribution),
    cpu_affinity=st.lists(st.integers(0, 200), max_size=4),
    gpu_affinity=st.lists(st.integers(0, 16), max_size=4),
    gpu_env_str=st.sampled_from(["", "MY_DEVICES"]),
)


@given(policies)
def test_a_policy_is_restored_from_its_description(policy: Policy) -> None:
    assert Policy.from_sdict(policy.get_sdict()) == policy
    assert Policy.from_sdict(policy.sdesc) == policy


@given(policies, policies)
def test_a_merged_policy_has_the_values_of_the_higher_policy(low: Policy, high: Policy) -> None:
    merged, default = Policy.merge(low, high), Policy()
    for name in policies_fields():
        wanted = getattr(high, name) if getattr(high, name) != getattr(default, name) else getattr(low, name)
        assert getattr(merged, name) == wanted


def policies_fields() -> list[str]:
    return list(Policy().get_sdict())


def test_nested_with_blocks_combine_their_policies() -> None:
    with Policy(cpu_affinity=[1]), Policy(gpu_affinity=[2]):
        assert Policy.thread_policy() == Policy(cpu_affinity=[1], gpu_affinity=[2])
    assert Policy.thread_policy() == Policy()


@pytest.mark.parametrize("value", [[2, 0], (2, 0), {2, 0}, frozenset({0, 2}), range(0, 4, 2)])
def test_an_affinity_is_any_sequence_or_set_of_numbers(value: Iterable[int]) -> None:
    policy = Policy(cpu_affinity=value, gpu_affinity=value)  # type: ignore[arg-type]
    assert policy.cpu_affinity == policy.gpu_affinity
    assert sorted(policy.cpu_affinity) == [0, 2]


@pytest.mark.parametrize("value", ["0", b"0", True, [None], {"1"}, {1: 2}])
def test_an_affinity_must_be_numbers(value: object) -> None:
    with pytest.raises(PolicyError, match="list or a set of device numbers"):
        Policy(cpu_affinity=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["placement", "distribution", "wait_mode"])
@pytest.mark.parametrize("value", ["HOST_NAME", "BLOCK", 99, None])
def test_an_option_must_be_a_member_of_its_enumeration(field: str, value: object) -> None:
    with pytest.raises(PolicyError, match=rf"{field} must be one of Policy\."):
        Policy(**{field: value})  # type: ignore[arg-type]


def test_placement_by_host_name_requires_a_host_name() -> None:
    with pytest.raises(PolicyError, match="host_name"):
        Policy(placement=Policy.Placement.HOST_NAME)
