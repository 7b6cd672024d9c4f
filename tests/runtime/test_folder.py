"""The private folder of a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Site

PROGRAM = """
    import sys
    from dragon.runtime.run import this_run
    from dragon.native.process import Process

    if __name__ == "__main__":
        process = Process(print, (this_run().folder,))
        process.start()
        process.join()
        sys.stdin.read()
"""


@pytest.fixture
def session() -> Iterator[Path]:
    """The folder of the user's login sessions, which is created if it does not exist."""
    folder = Path(f"/run/user/{os.getuid()}")
    made = []
    for each in (folder.parent, folder):
        if not each.exists():
            if not os.access(each.parent, os.W_OK):
                pytest.skip(f"nobody has logged in here, and {each} cannot be made")
            each.mkdir(mode=0o755 if each is folder.parent else 0o700)
            made.append(each)
    yield folder
    for each in reversed(made):
        each.rmdir()


def test_a_run_does_not_use_the_folder_of_the_login_session(site: Site, session: Path) -> None:
    done = site.run(
        sys.executable, site.write(PROGRAM), stdin=subprocess.DEVNULL, env={"XDG_RUNTIME_DIR": str(session)}
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith(str(session))


def test_the_folder_of_a_run_is_locked_against_cleaners_of_temporary_folders(
    site: Site, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    process = site.start(sys.executable, site.write(PROGRAM), stdin=subprocess.PIPE)
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    # systemd-tmpfiles passes over a folder that it cannot lock.
    wait_until(lambda: site.run("flock", "--exclusive", "--nonblock", folder, "true").returncode == 1)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("nodes", ["", "--nodes 2"], ids=["one node", "two nodes"])
def test_the_error_about_a_full_disk_names_the_file(site: Site, nodes: str) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    full = Path(site.environment["XDG_RUNTIME_DIR"])
    script = f"mount -t tmpfs -o size=16k none {full} && ! yes 2> /dev/null > {full}/filled"
    done = site.run("unshare", "-m", "sh", "-c", f"{script}; exec {sys.executable} -m dragon {nodes} /bin/true")
    assert done.returncode == 1
    assert re.search(rf"{full}/dragon-\S+: No space left|No space left on device: '{full}/dragon-", done.stderr)
    assert "Traceback" not in done.stderr


READ_ONLY = """
    mount -o remount,ro,bind / && mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp || exit 77
    mount -t tmpfs -o {shared} none /dev/shm && exec "$@"
"""


def in_a_read_only_system(site: Site, shared: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    environment = {"XDG_RUNTIME_DIR": "", "TMPDIR": ""}
    done = site.run("unshare", "-m", "sh", "-c", READ_ONLY.format(shared=shared), "sh", *command, env=environment)
    if done.returncode == 77:
        pytest.skip(f"this machine cannot be made read-only: {done.stderr}")
    return done


@pytest.mark.parametrize("options", [[], ["--nodes", "2"]])
def test_a_run_uses_shared_memory_if_all_other_folders_are_read_only(site: Site, options: list[str]) -> None:
    program = site.write(PROGRAM)
    done = in_a_read_only_system(site, "rw", sys.executable, "-m", "dragon", *options, program)
    assert done.stdout.startswith("/dev/shm/dragon-"), done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("options", [[], ["--nodes", "2"]])
def test_an_error_says_that_a_run_needs_a_writable_folder(site: Site, options: list[str]) -> None:
    program = site.write(PROGRAM)
    done = in_a_read_only_system(site, "ro", sys.executable, "-m", "dragon", *options, program)
    assert done.returncode == 1
    assert "a run needs a folder for its sockets" in done.stderr
    assert "Traceback" not in done.stderr


OFFERING = """
    import multiprocessing as mp
    import os, signal, sys, time
    from multiprocessing import resource_sharer

    import dragon

    def offer(ready):
        global offered
        offered = resource_sharer.DupFd(0)  # makes a socket, from which another process gets the descriptor
        ready.put(os.path.dirname(offered._id[0]))
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        queue = mp.Queue()
        process = mp.Process(target=offer, args=(queue,))
        process.start()
        folder = queue.get()
        process.join()
        print(process.exitcode, os.path.exists(folder))
"""


@pytest.mark.parametrize(("way", "printed"), [("ends", "0 False"), ("killed", "-9 True")])
@pytest.mark.parametrize("nodes", [[], ["--nodes", "2"]])
def test_sockets_of_multiprocessing_are_removed_after_the_run(
    site: Site, nodes: list[str], way: str, printed: str
) -> None:
    temporary = site.folder / "t"
    temporary.mkdir()
    done = site.dragon(*nodes, site.write(OFFERING), way, env={"TMPDIR": str(temporary)})
    assert done.stdout == f"{printed}\n", done.stderr
    assert list(temporary.iterdir()) == []


def test_a_program_that_joined_a_run_has_its_own_folder_for_sockets(site: Site) -> None:
    guest = site.write(
        """
        import os, sys
        from multiprocessing import util
        from pathlib import Path
        from dragon.runtime.run import join_run
        join_run(Path(sys.argv[1]))
        print(os.path.basename(sys.argv[1]) in util.get_temp_dir())  # the run's folders have the name of the first one
        """,
        "guest.py",
    )
    head = site.start(sys.executable, site.write(PROGRAM), stdin=subprocess.PIPE)
    assert head.stdout is not None
    folder = head.stdout.readline().strip()
    assert site.run(sys.executable, guest, folder).stdout == "False\n"
    head.communicate("")
