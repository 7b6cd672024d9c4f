"""Cluster files: the optional addresses of the master and the workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchloader.inputs.job import InputError
from torchloader.inputs.workload import read_hosts

WHOLE = """\
<?xml version="1.0"?>
<cluster_config>
  <master_config>
    <master_ip>d3093</master_ip>
    <master_port>5000</master_port>
    <authkey>secret of the cluster</authkey>
  </master_config>
  <worker_config>
    <worker_ip></worker_ip>
    <worker_rpc_port>6000</worker_rpc_port>
    <worker_socket_port>6001</worker_socket_port>
  </worker_config>
  <worker_config>
    <worker_ip>d3094</worker_ip>
  </worker_config>
</cluster_config>
"""


def read(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "cluster.xml"
    path.write_text(text)
    return read_hosts(path)


def test_the_hosts_of_the_workers_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE) == ["d3094"]


def test_all_elements_are_optional_and_unknown_ones_are_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, "<cluster_config/>") == []
    assert read(tmp_path, "<cluster_config><master_config/></cluster_config>") == []
    assert read(tmp_path, "<cluster_config><color/><worker_config><worker_pi/></worker_config></cluster_config>") == []


def test_several_workers_can_share_a_host(tmp_path: Path) -> None:
    worker = "<worker_config><worker_ip>d3093</worker_ip></worker_config>"
    assert read(tmp_path, f"<cluster_config>{worker * 3}</cluster_config>") == ["d3093"]


def test_the_key_is_not_in_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, WHOLE.replace("5000", "none"))
    assert "secret" not in str(error.value)


def test_entities_are_refused_before_their_expansion(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(30))
    bomb = f'<!DOCTYPE cluster_config [<!ENTITY e0 "ha">{entities}]><cluster_config>&e30;</cluster_config>'
    with pytest.raises(InputError, match="document type"):
        read(tmp_path, bomb)


def test_the_error_about_an_invalid_port_has_its_line_and_element(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, WHOLE.replace("5000", "70000").replace("6001", "x"))
    assert [(mistake.row, mistake.column) for mistake in error.value.mistakes] == [
        (5, "master_port"),
        (11, "worker_socket_port"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<cluster_config>", "invalid XML"),
        ("", "invalid XML"),
        ("<cluster/>", "<cluster>"),
        ("<cluster_config><master_config/><master_config/></cluster_config>", "several"),
        ("<cluster_config><master_config><authkey>a</authkey><authkey/></master_config></cluster_config>", "once more"),
    ],
)
def test_an_invalid_cluster_file_is_an_error(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read(tmp_path, text)
