"""Processes can be started with every folder, variable, argument and name that the operating system accepts."""

from __future__ import annotations

import os
import sys

import pytest

from conftest import Site


def test_a_process_works_in_the_folder_of_its_creator_even_if_it_was_removed(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import os
        import tempfile
        import dragon
        from dragon.native.process import ProcessTemplate

        def here():
            return os.stat(".").st_ino

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            folder = tempfile.mkdtemp()
            os.chdir(folder)
            os.rmdir(folder)
            with mp.Pool(1) as pool:
                print(pool.apply(here) == here())
            try:
                ProcessTemplate("true")
            except OSError as error:
                print(error)
    """)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "True",
        "[Errno 2] the working directory was removed; go to another one (os.chdir)",
    ]


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


def test_the_name_of_a_process_may_be_a_number(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon

        def tell():
            print(mp.current_process().name)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            process = mp.Process(target=tell, name=7)
            process.start()
            process.join()
    """)
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_variables_arguments_and_folders_that_are_not_utf_8_reach_processes(site: Site) -> None:
    folder = site.folder / os.fsdecode(b"f\xff")
    folder.mkdir()
    done = site.python(
        """
        import multiprocessing as mp
        import os
        import sys
        import dragon
        from dragon.native.process import Process

        def tell():
            print(os.environb[b"A\\xfe"], os.fsencode(sys.argv[1]), os.path.basename(os.getcwdb()), flush=True)
            if mp.parent_process().name == "MainProcess":
                start()

        def start():
            process = mp.Process(target=tell)
            process.start()
            process.join()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            os.chdir(b"f\\xff")
            os.environb[b"A\\xfe"] = b"\\xff"
            start()
            source = "import os, sys; print(os.environb[bytes([65, 254])], os.environb[b'B'], os.fsencode(sys.argv[1]))"
            word = os.fsdecode(b"\\xfd")
            process = Process(sys.executable, ["-c", source, word], cwd="/", env={"B": word})
            process.start()
            process.join()
        """,
        os.fsdecode(b"\xfc"),
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [r"b'\xff' b'\xfc' b'f\xff'"] * 2 + [r"b'\xff' b'\xfd' b'\xfd'"]


@pytest.mark.parametrize("options", [[], ["-m", "dragon"], ["-m", "dragon", "--nodes", "2"]])
def test_processes_can_have_names_folders_and_files_that_are_not_utf_8(site: Site, options: list[str]) -> None:
    done = site.run(
        sys.executable,
        *options,
        site.write("""
        import multiprocessing as mp
        import os
        import dragon
        from dragon.native.process import Process
        from dragon.native.process_group import ProcessGroup
        from dragon.native.process import ProcessTemplate

        BAD = os.fsdecode(b"\\xff")

        def tell():
            print(ascii(mp.current_process().name), os.path.basename(os.getcwdb()), flush=True)

        def end(process):
            process.start()
            process.join()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            os.mkdir(BAD)
            os.chdir(BAD)
            end(mp.Process(target=tell, name=BAD))
            end(Process("pwd", stdout=f"out{BAD}"))
            print(open(f"out{BAD}", "rb").read().endswith(b"/\\xff\\n"))
            group = ProcessGroup()
            group.add_process(2, ProcessTemplate("true"))
            group.init()
            group.start()
            group.join()
            print(group.exit_status)
            group.close()
            try:
                Process("pwd", cwd=os.path.abspath("no" + BAD)).start()
            except FileNotFoundError as error:
                print(ascii(os.path.basename(error.filename)))
            end(Process(tell))
        """),
        env={"PYTHONUNBUFFERED": "1"},
    )
    assert done.stderr == ""
    told = done.stdout.splitlines()
    assert told[0] == "'\\udcff' b'\\xff'"
    assert told[1:2] + told[3:4] == ["True", "'no\\udcff'"]
    assert told[2].count("0)") == 2
    assert told[4].endswith(" b'\\xff'")


def test_the_command_passes_on_arguments_that_are_not_utf_8(site: Site) -> None:
    program = site.write("import os, sys; print(os.fsencode(sys.argv[1]))")
    done = site.dragon(program, os.fsdecode(b"\xff"))
    assert (done.stdout, done.stderr) == ("b'\\xff'\n", "")
