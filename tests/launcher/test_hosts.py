"""Lists of hosts in the formats of users and workload managers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragon.launcher.slurm import expand, read_host_file, read_network_config


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("nid[001-003]", ["nid001", "nid002", "nid003"]),
        ("nid[008-010,100]", ["nid008", "nid009", "nid010", "nid100"]),
        ("gpu[1,3-4]-hsn,login[2]", ["gpu1-hsn", "gpu3-hsn", "gpu4-hsn", "login2"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("x1000c[0-1]s0b0n0", ["x1000c0s0b0n0", "x1000c1s0b0n0"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        (" a , b ", ["a", "b"]),
        ("", []),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize("text", ["a[1", "a]1", "a[1-]", "a[3-1]", "a[x-y]", "a[[1]]", "a[]"])
def test_an_invalid_list_of_hosts_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        expand(text)


@given(st.text(alphabet="a1[]-,", max_size=12))
def test_any_text_is_a_valid_list_or_raises_value_error(text: str) -> None:
    try:
        assert all(host and "," not in host for host in expand(text))
    except ValueError:
        assert set(text) & set("[]")


def test_a_host_file_can_have_comments_and_options(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the machine\nfirst slots=4\n\nsecond:  # spare\nsecond:\nthird[1-2]\n".replace(":", ""))
    assert read_host_file(str(file)) == ["first", "second", "third1", "third2"]


def test_a_host_file_without_hosts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# nobody\n")
    with pytest.raises(ValueError, match="names no hosts"):
        read_host_file(str(file))


def test_a_host_file_written_on_windows_is_read_if_it_is_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\r\n")
    assert read_host_file(str(file)) == ["first", "second"]
    file.write_text("first\n", "utf-16")
    with pytest.raises(ValueError, match="hosts is not UTF-8 text"):
        read_host_file(str(file))


NODES = {
    "0": {"state": 4, "h_uid": 7, "name": "b", "host_name": "b", "is_primary": False, "ip_addrs": ["10.0.0.2:6565"]},
    "1": {"state": 4, "h_uid": 3, "name": "a", "host_name": "a", "is_primary": True, "ip_addrs": ["10.0.0.1:6565"]},
    "10": {"host_name": "d", "is_primary": False},
    "2": {"name": "c", "is_primary": False},
}


def test_a_network_configuration_can_be_json(tmp_path: Path) -> None:
    file = tmp_path / "slurm.json"
    file.write_text(json.dumps(NODES))
    assert read_network_config(str(file)) == ["a", "b", "c", "d"]


def test_a_network_configuration_can_be_yaml(tmp_path: Path) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text("'0':\n  host_name: b\n  is_primary: false\n  ip_addrs: ['10.0.0.2:6565']\n'1':\n  host_name: a\n")
    assert read_network_config(str(file)) == ["b", "a"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"0": 1}', '{"0": {"name": ""}}', '{"x": {"name": "a"}}', "{", "\0", 5000 * "["],
    ids=lambda text: text[:10],
)
@pytest.mark.parametrize("name", ["nodes.json", "nodes.yaml"])
def test_an_invalid_network_configuration_raises_value_error(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ValueError, match="nodes"):
        read_network_config(str(file))
