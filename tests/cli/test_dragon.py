"""The command `dragon`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import dragon
from conftest import Site


def test_the_exit_code_is_that_of_the_program(site: Site) -> None:
    assert site.dragon(site.write("import sys; sys.exit(7)")).returncode == 7


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_the_exit_code_for_a_killed_program_is_128_plus_the_signal(site: Site, nodes: str) -> None:
    program = site.write("import os; os.kill(os.getpid(), 9)")
    done = site.dragon("--nodes", nodes, program, "an argument")
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr == f"dragon: {program} was ended by SIGKILL\n"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("doctr", "did you mean doctor?"),
        ("trian.py", "did you mean train.py?"),
        ("--foo", "arguments: --foo"),
    ],
)
def test_an_error_of_the_command_line_is_one_line_that_says_what_was_meant(site: Site, word: str, told: str) -> None:
    site.write("", "train.py")
    done = site.dragon(word)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert told in done.stderr
    assert done.stderr.endswith("(usage: dragon --help)\n")


def test_the_end_of_the_agent_is_reported(site: Site) -> None:
    program = site.write(
        "import os, time; from dragon.runtime.run import this_run; os.kill(this_run().agent.pid, 9); time.sleep(60)"
    )
    done = site.dragon(program)
    assert done.returncode == 128 + signal.SIGTERM
    assert "the agent (pid " in done.stderr


def test_the_program_has_its_arguments_and_the_standard_streams(site: Site) -> None:
    program = site.write("import sys; print(sys.argv[1:], sys.stdin.read()); print('bad', file=sys.stderr)")
    process = site.start(sys.executable, "-m", "dragon", program, "-l", "--epochs", "3", stdin=-1)
    out, err = process.communicate("hello", timeout=60)
    assert out == "['-l', '--epochs', '3'] hello\n"
    assert err == "bad\n"


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_program_can_be_read_from_standard_input(site: Site, nodes: str) -> None:
    process = site.start(sys.executable, "-m", "dragon", "--nodes", nodes, "-", "word", stdin=subprocess.PIPE)
    out, err = process.communicate("import sys, dragon; print(sys.argv, dragon.in_dragon())", timeout=60)
    assert (out, err) == ("['-', 'word'] True\n", "")


def test_the_word_run_can_precede_the_program(site: Site) -> None:
    done = site.dragon("run", "--basic-label", site.write("print('here')"))
    assert done.stdout == "[head] here\n"
    assert (
        "there is no command or file 'run' here, and no such program in PATH" in site.dragon("run", "run", "x").stderr
    )


def test_a_module_can_be_run_with_m(site: Site) -> None:
    site.write("import sys; print(__name__, sys.argv[1:])", "module_of_mine.py")
    done = site.dragon("-m", "module_of_mine", "-x", "1")
    assert done.stdout == "__main__ ['-x', '1']\n", done.stderr


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_the_start_method_is_patched_for_the_program_if_that_is_asked(site: Site, nodes: str) -> None:
    program = site.write("""
        import multiprocessing as mp
        import dragon

        if __name__ == "__main__":
            with mp.Pool(1) as pool:
                print(pool.apply(mp.get_start_method))
        """)
    done = site.dragon("--nodes", nodes, program, env={"DRAGON_PATCH_MP": "1"})
    assert done.stdout == "dragon\n", done.stderr


def test_an_executable_can_be_run(site: Site) -> None:
    done = site.dragon("sh", "-c", "echo $0 $1; exit 3", "a", "b")
    assert (done.returncode, done.stdout) == (3, "a b\n")


def test_the_program_is_in_a_run(site: Site) -> None:
    assert site.dragon(site.write("import dragon; print(dragon.in_dragon())")).stdout == "True\n"


def test_a_program_in_a_container_in_a_run_gets_an_error_with_a_remedy(site: Site) -> None:
    contained = ("unshare", "--user", "--map-root-user")
    if site.run(*contained, "true").returncode:
        pytest.skip("this machine permits no user namespaces")
    program = site.write("from dragon.native.queue import Queue; Queue()")
    done = site.dragon(*contained, sys.executable, program)
    assert done.returncode == 1
    assert "start the run in the container" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("nodes", [[], ["--nodes", "2"]])
def test_the_program_is_the_head_process_and_has_no_parent(site: Site, nodes: list[str]) -> None:
    program = site.write("""
        from dragon.globalservices.process import ProcessError
        from dragon.native.process import current

        print(current().name)
        try:
            current().parent()
        except ProcessError as error:
            print(error)
        """)
    done = site.dragon("--no-label", *nodes, program)
    assert done.stdout.splitlines() == ["head", "the head process was started by no process of the run"]


@pytest.mark.parametrize(
    ("option", "start"), [("--basic-label", "[head] "), ("--verbose-label", "["), ("--no-label", "one")]
)
def test_options_choose_the_labels_of_lines(site: Site, option: str, start: str) -> None:
    done = site.dragon(option, site.write("print('one'); print('two')"))
    lines = done.stdout.splitlines()
    assert [line[-3:] for line in lines] == ["one", "two"]
    assert lines[0].startswith(start)


def test_labels_name_every_process_of_a_group(site: Site) -> None:
    program = site.write(
        """
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        def speak(word):
            for number in range(200):
                print(word, number)

        if __name__ == "__main__":
            group = ProcessGroup(name="talk")
            group.add_process(2, ProcessTemplate(speak, args=("hello",)))
            group.init(); group.start(); group.join(); group.close()
        """
    )
    done = site.dragon("--basic-label", program)
    for rank in (0, 1):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[talk-{rank}] ")]
        assert [line.split()[-1] for line in mine] == [str(n) for n in range(200)]


def test_the_version_is_printed(site: Site) -> None:
    assert site.dragon("--version").stdout == f"dragon {dragon.__version__}\n"


@pytest.mark.parametrize("options", [["--nodes", "2"], ["--basic-label"]])
def test_a_full_disk_under_the_output_is_reported(site: Site, options: list[str]) -> None:
    words = " ".join(options)
    done = site.run("sh", "-c", f'exec {sys.executable} -m dragon {words} "$0" > /dev/full', site.write("print(1)"))
    assert "(No space left on device)" in done.stderr


def test_the_help_has_examples(site: Site) -> None:
    text = site.dragon("--help").stdout
    assert "examples:" in text
    assert "dragon train.py" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no program given; `dragon -h` shows how, and `dragon -` reads it from standard input"),
        (["no_such_program_anywhere"], "no such program in PATH"),
        (["/"], "the folder '/' has no __main__.py that could be run"),
        (["-l", "LOUD", "x.py"], "the levels are"),
        (["--nonsense", "x.py"], "--nonsense"),
    ],
)
def test_invalid_arguments_are_reported(site: Site, arguments: list[str], message: str) -> None:
    done = site.dragon(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_log_level_is_passed_to_the_runtime(site: Site) -> None:
    program = site.write("import os; print(os.environ['DRAGON_LOG_LEVEL'])")
    assert site.dragon("-l", "stderr=DEBUG", program).stdout.endswith("DEBUG\n")


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_variables_that_are_not_utf_8_reach_the_program(site: Site, nodes: str) -> None:
    script = site.write("import os, sys; sys.exit(os.environb[b'NOT_UTF_8'] != b'\\xff')\n")
    environment = {"NOT_UTF_8": os.fsdecode(b"\xff")}
    assert site.dragon("--nodes", nodes, script, env=environment).returncode == 0
    assert site.dragon("--nodes", nodes, "sh", "-c", f"{sys.executable} {script}", env=environment).returncode == 0


CHANGES_ITS_ENVIRONMENT = """
import os, sys

os.environ["SET"] = "1"
os.environ.pop("UNSET", None)

import multiprocessing as mp
import dragon
from dragon.native import Process

def show():
    print(*(os.environ.get(name) for name in ("SET", "UNSET", "GIVEN", "PMIX_RANK")), flush=True)

if __name__ == "__main__":
    mp.set_start_method("dragon")
    command = "echo $SET ${UNSET:-None} ${GIVEN:-None} ${PMIX_RANK:-None}"
    processes = [mp.Process(target=show), Process(show), Process("sh", ["-c", command])]
    if len(sys.argv) == 1:
        processes.append(Process(sys.executable, [__file__, "again"], env={"GIVEN": "2", "PMIX_RANK": "7"}))
    for process in processes:
        process.start()
        process.join()
"""


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_changes_of_the_environment_reach_processes(site: Site, nodes: str) -> None:
    program = site.write(CHANGES_ITS_ENVIRONMENT)
    done = site.dragon("--nodes", nodes, "--no-label", program, env={"UNSET": "0"})
    assert done.stderr == ""
    assert done.stdout == "1 None None None\n" * 3 + "1 None 2 None\n" * 3


CHANGES_ITS_UMASK = """
import os

import multiprocessing as mp
import dragon
from dragon.native import Popen, Process

def show():
    print(f"{os.umask(0o022):o}", flush=True)

if __name__ == "__main__":
    os.umask(0o027)
    mp.set_start_method("dragon")
    for process in (mp.Process(target=show), Process(show), Process("sh", ["-c", "umask"])):
        process.start()
        process.join()
    Popen(["-c", "umask"], "sh", umask=0o077).wait()
"""


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_the_umask_of_a_program_reaches_its_processes(site: Site, nodes: str) -> None:
    done = site.dragon("--nodes", nodes, "--no-label", site.write(CHANGES_ITS_UMASK))
    assert (done.stdout, done.stderr) == ("27\n27\n0027\n0077\n", "")


CHANGES_ITS_LIMITS = """
import os, resource

import multiprocessing as mp
import dragon
from dragon.infrastructure.policy import Policy
from dragon.native import Process
from dragon.native.machine import System

def show():
    print(resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0), flush=True)

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
    os.nice(3)
    mp.set_start_method("dragon")
    last = Policy(placement=Policy.Placement.HOST_NAME, host_name=System().hostname_policies()[-1].host_name)
    shell = "echo \\"($(ulimit -Sn), $(ulimit -Hn)) $(nice)\\""
    for process in (mp.Process(target=show), Process(show, policy=last), Process("sh", ["-c", shell], policy=last)):
        process.start()
        process.join()
"""


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_limits_of_a_program_reach_its_processes(site: Site, nodes: str) -> None:
    done = site.dragon("--nodes", nodes, "--no-label", site.write(CHANGES_ITS_LIMITS))
    assert (done.stdout, done.stderr) == (f"(300, 400) {os.nice(0) + 3}\n" * 3, "")


QUEUE = """
    from dragon.native.process import Process
    from dragon.native.queue import Queue

    def put(queue):
        queue.put("all is well")

    if __name__ == "__main__":
        queue = Queue()
        process = Process(put, (queue,))
        process.start()
        process.join()
        with open("told", "w") as file:
            file.write(queue.get())
"""


def limited(site: Site, before: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in the shell command `before`."""
    command = shlex.join([sys.executable, "-m", "dragon", *map(str, arguments)])
    return site.run("sh", "-c", before.format(command))


@pytest.mark.parametrize("options", [[], ["--nodes", "1"], ["--nodes", "2"]])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-"])
def test_a_program_runs_with_closed_standard_streams(site: Site, closed: str, options: list[str]) -> None:
    show = "import os, stat\nassert not any(stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in range(3))\n"
    program = site.write(show + textwrap.dedent(QUEUE))
    done = limited(site, "{} " + closed, *options, program)
    assert done.returncode == 0, done.stderr
    assert (site.folder / "told").read_text() == "all is well"


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_small_limit_of_open_files_is_sufficient(site: Site, nodes: str) -> None:
    done = limited(site, "ulimit -n 60 && {}", "--nodes", nodes, site.write(QUEUE))
    assert done.returncode == 0, done.stderr
    assert (site.folder / "told").read_text() == "all is well"


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_limit_of_open_files_that_is_too_small_is_reported_in_one_line(site: Site, nodes: str) -> None:
    done = limited(site, "ulimit -n 18 && {}", "--nodes", nodes, site.write(QUEUE))
    assert done.returncode != 0
    what = "a run" if nodes == "1" else "a run of 2 nodes"
    assert re.fullmatch(rf"dragon: (error: )?{what} needs \d+ open files, and the hard limit is 18: .*\n", done.stderr)


CROWD = """
    import sys

    from dragon.native.event import Event
    from dragon.native.process import ProcessTemplate
    from dragon.native.process_group import ProcessGroup
    from dragon.native.queue import Queue

    def stand(here, over):
        here.put(None)
        over.wait()

    if __name__ == "__main__":
        count, here, over = int(sys.argv[1]), Queue(), Event()
        group = ProcessGroup()
        group.add_process(nproc=count, template=ProcessTemplate(stand, (here, over)))
        group.init()
        group.start()
        for _ in range(count):
            here.get()
        over.set()
        group.join()
        group.close()
"""


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_large_group_runs_with_a_small_soft_limit_of_open_files(site: Site, nodes: str) -> None:
    done = limited(site, "ulimit -Sn 100 && {}", "--nodes", nodes, site.write(CROWD), "120")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_large_group_is_refused_if_the_hard_limit_of_open_files_is_too_small(site: Site) -> None:
    done = limited(site, "ulimit -n 100 && {}", site.write(CROWD), "60")
    assert done.returncode == 1
    message = r"60 processes need 120 open files of \S+'s agent, which may open \d+ more: raise the hard limit"
    assert re.search(message, done.stderr)


@pytest.mark.parametrize(
    ("nodes", "before", "message"),
    [
        ("2", "mkdir gone && cd gone && rmdir ../gone && {}", "the working directory was removed"),
        *((nodes, "ulimit -f 100 && {}", "the shared memory cannot be sized (ulimit -f)") for nodes in ("1", "2")),
    ],
)
def test_the_error_says_why_a_run_cannot_start(site: Site, nodes: str, before: str, message: str) -> None:
    done = limited(site, before, "--nodes", nodes, site.write(QUEUE))
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
