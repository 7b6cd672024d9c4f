"""The messages with which application masters start the ranks of an application."""

from __future__ import annotations

from dataclasses import replace

from torchloader.inputs.job import Devices, Job
from torchloader.scheduling.application import Application
from torchloader.service.messages import Joined
from torchloader.service.placing import launches, spec_of
from torchloader.service.settings import Settings

NODES = {name: Joined(name, "", f"10.0.0.{number}", 4, (0, 1), 0, {}) for number, name in enumerate(["a", "b"])}


def test_the_ranks_of_all_nodes_have_the_same_master_address_and_port() -> None:
    spec = spec_of(Job("job", 8, 4, "out", Devices(anywhere=3), script="train.py"), 3)
    record = replace(Application(spec), placement={"b": (0, 1), "a": (1,)}, workers=2, starts=5)
    orders = launches(record, NODES, Settings(".", 0.0, device="cuda"))
    ranks = [rank for node in ("b", "a") for rank in orders[node].devices.items()]
    assert ranks == [(0, 0), (1, 1), (2, 1)]
    assert {(each.master, each.world_size, each.attempt) for each in orders.values()} == {("10.0.0.1", 3, 5)}
    assert len({each.port for each in orders.values()}) == 1
