"""Programs that attach to the run of another program."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.infrastructure.errors import NotSupportedError
from dragon.workflows import runtime

SERVING = """
    import sys
    from dragon.data.ddict import DDict
    from dragon.workflows import runtime

    if __name__ == "__main__":
        store = DDict(1, 1, 2**26)
        store["asked"] = 0
        runtime.publish("shop", sys.argv[1])
        print(store.serialize(), flush=True)
        sys.stdin.readline()
        print(store["answer"])
        store.destroy()
"""
ASKING = """
    import sys
    from dragon.data.ddict import DDict
    from dragon.native.process import Process
    from dragon.workflows import runtime

    def answer(store):
        store["answer"] = store["asked"] + 42

    if __name__ == "__main__":
        with runtime.attach(sdesc_str=runtime.lookup("localhost", "shop", 30, sys.argv[1])) as here:
            store = DDict.attach(sys.argv[2])
            process = Process(answer, (store,))
            process.start()
            process.join()
            print(here.name)
        assert runtime.current_runtime() is None
"""


def test_a_program_can_attach_to_a_published_run_and_detach(site: Site) -> None:
    published = site.folder / "published"
    serving = site.start(sys.executable, site.write(SERVING, "serving.py"), published, stdin=-1)
    assert serving.stdout is not None
    store = serving.stdout.readline().strip()
    assert stat.S_IMODE((published / "shop").stat().st_mode) == 0o600
    asking = site.python(ASKING, str(published), store)
    assert asking.returncode == 0, asking.stderr
    runs = json.loads(site.dragon("ps", "--json").stdout)
    assert [run["run"] for run in runs if run["head"] == serving.pid] == [asking.stdout.strip()]
    out, err = serving.communicate("go on\n", timeout=60)
    assert (out, serving.returncode) == ("42\n", 0), err
    assert list(published.iterdir()) == []  # the name went with its program


def test_a_local_runtime_runs_until_it_is_stopped(site: Site) -> None:
    program = """
        import os
        from dragon.native.queue import Queue
        from dragon.workflows import runtime

        def main():
            with runtime.start_local_runtime() as local:
                for number in range(2):
                    with runtime.attach(runtime=local):
                        queue = Queue()
                        queue.put(number)
                        print(queue.get())
            try:
                runtime.attach(timeout=0, runtime=local)
            except RuntimeError as error:
                print(error)

        if __name__ == "__main__":
            main()
    """
    done = site.python(program)
    assert done.returncode == 0, done.stderr
    first, second, refused = done.stdout.splitlines()
    assert (first, second) == ("0", "1")
    assert "has a node on" in refused


def test_a_local_runtime_can_have_several_nodes(site: Site, simulated: object) -> None:
    program = """
        import sys
        from dragon.infrastructure.policy import Policy
        from dragon.native.machine import System
        from dragon.native.process import Process
        from dragon.workflows import runtime

        def say_much():
            for number in range(20_000):
                print(number)

        if __name__ == "__main__":
            command = [sys.executable, "-m", "dragon", "--nodes", "2", "--cpus", "3"]
            with runtime.start_local_runtime(dragon_cmd=command) as local, runtime.attach(runtime=local):
                there = Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[1])
                process = Process(say_much, policy=there)
                process.start()
                process.join()
    """
    done = site.python(program)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == list(map(str, range(20_000))), done.stderr


def test_the_error_about_a_command_that_starts_no_run_names_it() -> None:
    with pytest.raises(RuntimeError, match=r"no run: false -m dragon\.workflows\.idle ended with 1"):
        runtime.start_local_runtime(dragon_cmd="false")
    with pytest.raises(TimeoutError, match=r"no run after 0\.1 s: "):
        runtime.start_local_runtime(0.1, dragon_cmd=[sys.executable, "-c", "import sys; sys.stdin.read()"])


def test_the_errors_of_a_failed_attach_have_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no run on localhost is published as lost"):
        runtime.lookup("localhost", "lost", 0.05, tmp_path)
    with pytest.raises(RuntimeError, match="not a descriptor of a run"):
        runtime.attach(sdesc_str="cos\nsystem")
    with pytest.raises(RuntimeError, match="start this program on one of its nodes"):
        runtime.attach(timeout=0, sdesc_str='{"run":"none","host":"far"}')
    with pytest.raises(NotSupportedError, match="on one of its nodes"):
        runtime.attach(remote_cwd="/elsewhere")
    with pytest.raises(ValueError, match="name of a file"):
        runtime.publish("../shop", tmp_path)


def test_the_error_about_a_misplaced_descriptor_names_its_argument() -> None:
    with pytest.raises(TypeError, match="not 'text'; a descriptor is given as sdesc_str"):
        runtime.attach("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not 'text'; a descriptor is given as sdesc_str"):
        runtime.attach(runtime="text")  # type: ignore[arg-type]


def test_a_process_of_one_run_does_not_attach_to_another(tmp_path: Path) -> None:
    runtime.publish("mine", tmp_path)  # of this process, which so has a run
    with pytest.raises(FileExistsError, match="published as mine already"):
        runtime.publish("mine", tmp_path)
    with runtime.start_local_runtime() as local, pytest.raises(RuntimeError, match="belongs to the run in"):
        runtime.attach(runtime=local)


def test_a_name_that_a_killed_program_left_is_not_found_and_can_be_reused(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text(json.dumps({"run": "gone", "host": os.uname().nodename}))
    with pytest.raises(RuntimeError, match="no run on localhost is published as shop"):
        runtime.lookup("localhost", "shop", publish_dir=tmp_path)
    assert runtime.publish("shop", tmp_path).read_text() == runtime.lookup("localhost", "shop", publish_dir=tmp_path)


def test_a_serialized_object_of_another_run_is_refused(site: Site) -> None:
    making = "from dragon.native import Queue; queue = Queue(); print(queue.serialize().decode(), flush=True); input()"
    other = site.start(sys.executable, "-c", making, stdin=-1)
    assert other.stdout is not None
    program = """
        import sys
        from dragon.native import Queue

        own = Queue()
        try:
            Queue.attach(sys.argv[1])
        except Exception as error:
            print(type(error).__name__, error)
    """
    asked = site.python(program, other.stdout.readline().strip())
    assert asked.stdout.startswith("DestroyedError the object is gone"), asked
    assert "of another run" in asked.stdout
    other.communicate("end\n", timeout=60)
