"""Bytes that are passed to a process at its start."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.globalservices import api_setup, process
from dragon.infrastructure.errors import NotSupportedError

PROGRAM = """
import hashlib, os, subprocess, sys
from dragon.globalservices import api_setup

api_setup.connect_to_infrastructure()
data = api_setup._ARG_PAYLOAD
print(None if data is None else hashlib.sha256(data).hexdigest(), api_setup._ARG_PAYLOAD == data, flush=True)
if "--again" in sys.argv:
    subprocess.run([sys.executable, sys.argv[0]], check=True)
api_setup.disconnect_infrastructure()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [0, 10, 300_000, 20_000_000])
def test_a_program_finds_its_argument_data(program: Path, size: int) -> None:
    data = os.urandom(size)
    started = process.create_with_argdata(sys.executable, "", [str(program)], None, data, stdout=process.PIPE)
    assert started.stdout_conn.recv() == f"{digest(data)} True\n"
    assert process.join(started.p_uid) == 0


def test_processes_of_the_program_have_no_argument_data(program: Path) -> None:
    arguments = [str(program), "--again"]
    started = process.create_with_argdata(sys.executable, "", arguments, None, b"data", stdout=process.PIPE)
    assert started.stdout_conn.recv() == f"{digest(b'data')} True\n"
    assert started.stdout_conn.recv() == "None True\n"
    assert process.join(started.p_uid) == 0


def test_a_function_with_its_arguments_can_be_passed() -> None:
    data = pickle.dumps((print, ("called",), {"end": "!\n"}))
    call = "from dragon.native.process import _dragon_native_python_process_main as run; run()"
    started = process.create_with_argdata(sys.executable, "", ["-c", call], None, data, stdout=process.PIPE)
    assert started.stdout_conn.recv() == "called!\n"
    assert process.join(started.p_uid) == 0


STARTS_BEFORE_IT_LOOKS = """
from dragon.globalservices import api_setup
from dragon.native import Process

def look():
    print(api_setup._ARG_PAYLOAD, flush=True)

if __name__ == "__main__":
    process = Process(look)
    process.start()
    process.join()
    look()
"""


def test_argument_data_is_not_passed_on_to_processes_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STARTS_BEFORE_IT_LOOKS)
    arguments = [str(tmp_path / "program.py")]
    output = str(tmp_path / "output")
    started = process.create_with_argdata(sys.executable, "", arguments, None, b"data", stdout=output)
    assert process.join(started.p_uid) == 0
    assert (tmp_path / "output").read_text() == "None\nb'data'\n"


def test_a_message_holds_the_data_for_each_member(program: Path) -> None:
    message = process.get_create_message_with_argdata(sys.executable, "", [str(program)], None, b"data")
    assert message.argdata == b"data"


def test_a_program_that_was_started_without_argument_data_has_none() -> None:
    assert api_setup._ARG_PAYLOAD is None


def test_argument_data_is_passed_to_a_process_of_another_node(site: Site, program: Path) -> None:
    source = f"""
        import sys
        from dragon.globalservices import process
        from dragon.infrastructure.policy import Policy

        there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
        for data in (b"small", bytes(5_000_000)):
            started = process.create_with_argdata(sys.executable, "", [{str(program)!r}], None, data, policy=there)
            assert process.join(started.p_uid) == 0
    """
    done = site.dragon("--nodes", "2", site.write(source))
    assert (done.stdout, done.stderr) == (f"{digest(b'small')} True\n{digest(bytes(5_000_000))} True\n", "")


def test_argument_data_must_be_bytes() -> None:
    with pytest.raises(TypeError, match="argdata must be bytes, not str"):
        process.create_with_argdata("sleep", "", ["0"], None, "text")  # type: ignore[arg-type]


def test_connect_as_external_names_attach_as_the_replacement() -> None:
    with pytest.raises(NotSupportedError, match=r"dragon.workflows.runtime.attach\(\)"):
        api_setup.connect_as_external(None)


def test_a_reboot_of_nodes_is_not_supported() -> None:
    with pytest.raises(NotSupportedError, match="--resilient"):
        process.runtime_reboot(hostnames=["node-1"])
