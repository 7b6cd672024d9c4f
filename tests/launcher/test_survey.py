"""The descriptions of nodes for a network configuration file."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from meeting import asynchronously

from dragon.cli.network_config import as_configuration, survey
from dragon.launcher.base import LaunchError, Simulated
from dragon.launcher.slurm import read_network_config

STAND_IN = Path(__file__).with_name("stand_in.py")


def launcher(program: Path = STAND_IN) -> Simulated:
    result = Simulated(2)
    result.command = [sys.executable, str(program), "--join", "-"]
    return result


def test_a_file_with_the_descriptions_of_nodes_can_be_read(tmp_path: Path) -> None:
    members = asynchronously(survey(launcher(), "", 0, 30))
    names = ["node-0", "node-1"]
    nodes = as_configuration(members, names)
    assert [node["host_name"] for node in nodes.values()] == ["node-0", "node-1"]
    assert [node["is_primary"] for node in nodes.values()] == [True, False]
    assert nodes["1"]["ip_addrs"] == ["127.0.0.1:1"]
    assert nodes["0"]["num_cpus"] >= 1
    file = tmp_path / "simulated.yaml"
    file.write_bytes(msgspec.yaml.encode(as_configuration(members, names, "node-1")))
    assert read_network_config(str(file)) == ["node-1", "node-0"]
    with pytest.raises(ValueError, match="'node-2' is none of the nodes: node-0, node-1"):
        as_configuration(members, names, "node-2")


def test_the_file_has_the_names_with_which_the_hosts_were_reached(tmp_path: Path) -> None:
    members = asynchronously(survey(launcher(), "", 0, 30))
    file = tmp_path / "ssh.json"
    for primary in ("gpu-b", "node-1"):
        file.write_bytes(msgspec.json.encode(as_configuration(members, ["gpu-a", "gpu-b"], primary)))
        assert read_network_config(str(file)) == ["gpu-b", "gpu-a"]


def test_the_error_about_a_node_without_a_number_names_its_key(tmp_path: Path) -> None:
    file = tmp_path / "ssh.yaml"
    file.write_text("null: {host_name: gpu-a}")
    with pytest.raises(ValueError, match="the keys must be numbers of nodes, not None"):
        read_network_config(str(file))


@pytest.mark.parametrize("data", [b"{", b'{"\xff": 1}'])
def test_the_error_about_a_damaged_file_of_hosts_names_its_path(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "ssh.json"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"ssh\.json is neither YAML nor JSON"):
        read_network_config(str(file))


def test_an_agent_that_fails_during_the_survey_is_reported() -> None:
    with pytest.raises(LaunchError, match=r"the agent of node-\d ended with code 2"):
        asynchronously(survey(launcher(Path("/nonexistent.py")), "", 0, 30))
