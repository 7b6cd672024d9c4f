"""The commands dragon-config, dragon-network-config and dragon-network-ifaddrs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dragon
from dragon.cli import config, ifaddrs, network_config
from dragon.infrastructure import configuration


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_settings_are_stored_shown_and_removed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = "mpiexec -n {nnodes} --hosts {nodelist}"
    assert config.main(["add", "--backend-mpiexec-override", command, "--tcp-runtime"]) == 0
    assert config.main(["-g", "backend-mpiexec-override"]) == 0
    assert config.main(["--serialize"]) == 0
    got, everything = capsys.readouterr().out.splitlines()
    assert got == command
    assert json.loads(everything) == {"backend_mpiexec_override": command, "tcp_runtime": "1"}
    assert [path.name for path in (tmp_path / "dragon").iterdir()] == ["config.json"]
    assert config.main(["--clean"]) == 0
    assert config.main(["--get", "tcp-runtime"]) == 1
    assert "not set; set are: none" in capsys.readouterr().err


def test_settings_can_be_in_another_file(tmp_path: Path) -> None:
    assert config.main(["--config-file", str(tmp_path / "mine"), "add", "--tcp-runtime"]) == 0
    assert configuration.read(tmp_path / "mine") == {"tcp_runtime": "1"}
    assert configuration.read() == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "--ofi-runtime-lib=/opt/lib"], "--ofi-runtime-lib: libfabric is not used"),
        (["add", "--ucx-include=/opt"], "--ucx-include: UCX is that of the ucxx wheel"),
        (["add", "--cuda-runtime-lib=/opt"], "--cuda-runtime-lib: the CUDA that a program brings"),
        (["add", "--netconfig-mpiexec-override=x"], "--netconfig-mpiexec-override: "),
        (["-l"], "compiler and linker options: there is no C interface"),
        (["-e"], "compiler and linker options: there is no C interface"),
        (["test", "--open-mpi", "/opt"], "test: the tests of MPI take the one in PATH"),
    ],
)
def test_options_without_effect_give_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert config.main(words) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dragon-config: {told}")
    assert err.count("\n") == 1
    assert configuration.read() == {}


def test_the_base_directory_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert config.main(["-b"]) == 0
    assert capsys.readouterr().out.strip() == str(Path(dragon.__file__).parent)


def test_the_error_about_a_damaged_file_names_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{")
    assert config.main(["--config-file", str(tmp_path / "bad"), "-s"]) == 1
    assert f"`dragon-config --config-file {tmp_path / 'bad'} --clean` removes it" in capsys.readouterr().err


def test_a_command_with_unknown_placeholders_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--config-file", str(tmp_path / "file"), "add", "--backend-mpiexec-override", "mpiexec {nnodes} {foo}"]
    assert config.main(words) == 1
    assert "{foo} is neither {nnodes} nor {nodelist}" in capsys.readouterr().err


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    assert ifaddrs.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


def test_interfaces_are_chosen_by_name_family_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    everything = listed(capsys)
    loopback = [entry for entry in everything if entry["name"] == "lo" and entry["family"] == "AF_INET"]
    assert loopback[0]["address"] == "127.0.0.1"
    assert listed(capsys, "lo", "--ip") == loopback
    assert listed(capsys, "-n", "l.", "-f", "inet") == loopback
    assert all(entry["name"] != "lo" for entry in listed(capsys, "--no-loopback"))
    assert all("IFF_UP" in entry["flags"] for entry in listed(capsys, "--up"))  # type: ignore[operator]
    assert loopback[0] in listed(capsys, "-a", "LOOPBACK", "IFF_POINTOPOINT")
    assert loopback[0] not in listed(capsys, "-x", "loopback")
    assert listed(capsys, "nothing-like-this") == []


@pytest.mark.parametrize("words", [["-f", "FOO"], ["-r", "UP", "FOO"], ["-a", "FOO"], ["-x", "FOO"]])
def test_unknown_families_and_flags_are_refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit):
        ifaddrs.main(words)
    assert "'FOO' is not one of" in capsys.readouterr().err


def test_a_network_configuration_requires_several_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert network_config.main(["--nodes", "1"]) == 1
    assert "one node needs no configuration" in capsys.readouterr().err
    assert network_config.main([]) == 1
    assert "several nodes were requested" in capsys.readouterr().err


def test_the_error_about_an_unwritable_network_configuration_names_its_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "simulated.yaml").mkdir()
    assert network_config.main(["--nodes", "2", "--output-to-yaml"]) == 1
    assert capsys.readouterr().err == "dragon-network-config: simulated.yaml: Is a directory\n"


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "soon"])
def test_an_invalid_time_is_refused(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit):
        network_config.main(["--nodes", "2", "--join-timeout", seconds])
    assert f"{seconds!r} is not a number of seconds above 0" in capsys.readouterr().err
