"""Options that select the nodes of a run, but have no effect or cannot be satisfied."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from conftest import Site

PROGRAM = "import os, sys; print('ran', sys.argv[1:])"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--overlay-port", "6565"], "--overlay-port: agents listen at free ports"),
        (["-o", "tcp"], "--overlay-transport: control messages are sent over TCP with TLS"),
        (["-t", "hsta"], "--transport hsta: not available; tcp is used"),
        (["-a"], "--attachable: no file is written"),
        (["--passphrase", "x"], "--passphrase: it is visible to everybody"),
        (["-w", "local", "--hostlist", "a,b"], "--hostlist: hosts are for ssh; with --wlm local they are not used"),
        (
            ["-s", "--hostlist", "a", "--network-config", "x"],
            "--network-config: not used; the hosts are those of --hostlist",
        ),
        (["-e"], "--exhaust-resources: without --resilient"),
    ],
)
def test_an_option_without_effect_gives_one_line(site: Site, options: list[str], told: str) -> None:
    done = site.dragon(*options, site.write(PROGRAM), "-N", "3")
    assert done.stdout == "ran ['-N', '3']\n"
    assert done.stderr.startswith(f"dragon: {told}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [["-s"], ["-N", "1"], ["-p", "7575"], ["--frontend-port", "6566"], ["--network-prefix", "eth"], ["-r", "-i", "1"]],
)
def test_options_for_several_nodes_have_no_effect_on_one_node(site: Site, options: list[str]) -> None:
    done = site.dragon(*options, site.write(PROGRAM))
    assert (done.stdout, done.stderr, done.returncode) == ("ran []\n", "", 0)


def test_a_module_can_follow_options_with_values(site: Site) -> None:
    site.write("import sys; print(sys.argv[1:])", "mine.py")
    done = site.dragon("-N", "1", "--port", "0", "-m", "mine", "-N", "7")
    assert done.stdout == "['-N', '7']\n", done.stderr


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--hostfile", "nowhere"], 2, "nowhere: No such file or directory"),
        (["--hostlist", "a[1"], 2, "brackets that do not match"),
        (["--hostlist", "a", "--hostfile", "b"], 2, "not allowed with"),
        (["-s", "--multi-node-override"], 2, "not allowed with"),
        (["--hostlist", ""], 2, "--hostlist '' names no hosts"),
        (["--hostlist", " , "], 2, "names no hosts"),
        (["--hostlist", "n[1-999999999]"], 2, "more than 100000 hosts"),
        (["-N", "-1"], 2, "'-1' is not a whole number of at least 0"),
        (["-N", "x"], 2, "'x' is not a whole number of at least 0"),
        (["-N", "2", "-p", "99999"], 2, "'99999' is not a TCP port"),
        (["-N", "2", "--join-timeout", "nan"], 2, "'nan' is not a number of seconds above 0"),
        (["--telemetry-port", "-1"], 2, "'-1' is not a TCP port"),
        (["-N", "2", "--network-prefix", "["], 2, "'[' is not a regular expression"),
        (["-w", "slurm"], 1, "not in a Slurm allocation"),
        (["-w", "pbs"], 1, "not in a PBS job"),
        (["-w", "ssh"], 1, "no hosts are given"),
        (["--multi-node-override"], 1, "several nodes were requested"),
    ],
)
def test_invalid_options_are_errors(site: Site, options: list[str], code: int, told: str) -> None:
    done = site.dragon(*options, site.write(PROGRAM))
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_argument_that_is_not_utf_8_is_refused_with_several_nodes(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(PROGRAM), os.fsdecode(b"\xff"))
    assert done.returncode == 1
    assert "'\\udcff' is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["-"], ["environment"], ["/nonexistent"]])
def test_an_agent_without_a_token_reports_an_error(site: Site, words: list[str]) -> None:
    process = site.start(sys.executable, "-m", "dragon", "node", "--join", *words, stdin=-1)
    _, err = process.communicate("nonsense\n", timeout=60)
    assert process.returncode == 2
    assert "the token of a run, or the node's index in it, is missing" in err


def test_the_error_about_a_used_port_of_the_front_end_names_the_option(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = site.dragon("--nodes", "2", "--frontend-port", str(port), site.write("print('runs')"))
    assert done.returncode != 0
    assert done.stdout == ""
    assert f"cannot listen at port {port}: Address already in use; give another --frontend-port" in done.stderr
