"""The unique name and the port of a job that is submitted to a running workload."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchloader.inputs.job import Devices, Job
from torchloader.service.commands import unlike

JOB = Job("resnet10-1", 8, 4, "out", Devices(anywhere=1), arch="resnet", depth=10, master="a", port=5)


@pytest.mark.parametrize(
    ("taken", "name"),
    [
        ([], "resnet10-1"),
        (["resnet10-2"], "resnet10-1"),
        (["resnet10-1"], "resnet10-1-2"),
        (["resnet10-1", "resnet10-1-2", "resnet10-1-4"], "resnet10-1-3"),
    ],
)
def test_a_used_name_gets_the_next_number(taken: list[str], name: str) -> None:
    there = {each: replace(JOB, name=each) for each in taken}
    assert unlike(JOB, there, ended=taken) == replace(JOB, name=name)


def test_a_port_can_be_reused_after_the_end_of_its_job() -> None:
    assert unlike(JOB, {"other": replace(JOB, name="other")}, ended=()).port == 0
    assert unlike(JOB, {"other": replace(JOB, name="other")}, ended=("other",)).port == 5
    assert unlike(JOB, {"other": replace(JOB, name="other", master="b")}, ended=()).port == 5
