"""Processes can be started with every folder, variable, argument and name that the operating system accepts."""

from __future__ import annotations

import os
import sys

import pytest

from conftest import Site
from together import failures

PROGRAM = """
import multiprocessing as mp
import os
import sys
import tempfile

import dragon
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue

context = mp.get_context("dragon")
BAD = os.fsdecode(b"\\xff")


def end(process):
    process.start()
    process.join()


def tell_name(told):
    told.put((mp.current_process().name, os.path.basename(os.getcwdb())))


def check_the_name_of_a_process_may_be_a_number():
    told = Queue()
    end(context.Process(target=tell_name, args=(told,), name=7))
    assert told.get(timeout=30)[0] == 7


def check_names_folders_and_files_may_be_no_utf_8():
    told = Queue()
    os.mkdir(BAD)
    os.chdir(BAD)
    end(context.Process(target=tell_name, args=(told,), name=BAD))
    assert told.get(timeout=30) == (BAD, b"\\xff")
    end(Process(tell_name, (told,)))
    assert told.get(timeout=30)[1] == b"\\xff"
    end(Process("pwd", stdout=f"out{BAD}"))
    assert open(f"out{BAD}", "rb").read().endswith(b"/\\xff\\n")
    group = ProcessGroup()
    group.add_process(2, ProcessTemplate("true"))
    group.init()
    group.start()
    group.join()
    assert [code for _, code in group.exit_status] == [0, 0]
    group.close()
    try:
        Process("pwd", cwd=os.path.abspath("no" + BAD)).start()
    except FileNotFoundError as error:
        assert os.path.basename(error.filename) == "no" + BAD
    else:
        raise AssertionError("no error")


def tell_all(told):
    told.put((os.environb[b"A\\xfe"], os.fsencode(sys.argv[1]), os.path.basename(os.getcwdb())))
    if mp.parent_process().name == "MainProcess":
        end(context.Process(target=tell_all, args=(told,)))


def check_variables_and_arguments_may_be_no_utf_8():
    told = Queue()
    os.environb[b"A\\xfe"] = b"\\xff"
    sys.argv[1:] = [os.fsdecode(b"\\xfc")]
    end(context.Process(target=tell_all, args=(told,)))
    assert [told.get(timeout=30) for _ in range(2)] == [(b"\\xff", b"\\xfc", b"\\xff")] * 2
    source = "import os, sys; print(os.environb[bytes([65, 254])], os.environb[b'B'], os.fsencode(sys.argv[1]))"
    word = os.fsdecode(b"\\xfd")
    end(Process(sys.executable, ["-c", source, word], cwd="/", env={"B": word}, stdout=os.path.abspath("words")))
    assert open("words").read() == r"b'\\xff' b'\\xfd' b'\\xfd'" + "\\n"


def here(_):
    return os.stat(".").st_ino


def check_a_process_works_in_the_folder_of_its_creator_even_if_it_was_removed():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    with context.Pool(1) as pool:
        assert pool.apply(here, (0,)) == here(0)
    try:
        ProcessTemplate("true")
    except OSError as error:
        assert str(error) == "[Errno 2] the working directory was removed; go to another one (os.chdir)"
    else:
        raise AssertionError("no error")
"""


@pytest.mark.parametrize(
    ("command", "options"),
    [(False, []), (True, []), (True, ["--nodes", "2"])],
    ids=["python", "dragon", "two nodes"],
)
def test_a_process_can_have_any_name_folder_variable_and_argument(
    site: Site, command: bool, options: list[str]
) -> None:
    found = failures(site, PROGRAM, *options, command=command)
    assert (found, found.stderr) == ({}, "")


@pytest.mark.parametrize("command", [[sys.executable], [sys.executable, "-m", "dragon"]])
def test_a_program_runs_in_a_folder_that_was_removed(site: Site, command: list[str]) -> None:
    program = site.write("""
        import multiprocessing as mp
        import dragon

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            process = mp.Process(target=print, args=("runs",))
            process.start()
            process.join()
    """)
    in_a_removed_folder = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = site.run("sh", "-c", in_a_removed_folder, "sh", *command, program)
    assert (done.stdout, done.stderr) == ("runs\n", "")


def test_the_command_passes_on_arguments_that_are_not_utf_8(site: Site) -> None:
    program = site.write("import os, sys; print(os.fsencode(sys.argv[1]))")
    done = site.dragon(program, os.fsdecode(b"\xff"))
    assert (done.stdout, done.stderr) == ("b'\\xff'\n", "")
