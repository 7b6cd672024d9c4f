"""Private names of CPython that the package uses: each exists and behaves as expected."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import random
import subprocess
import sys
import textwrap
from multiprocessing import reduction

import pytest

from dragon import cpython


def output_of(program: str, *options: str) -> str:
    """Return what a program prints on stdout; the program can use the module under test."""
    head = "from dragon import cpython\n"
    command = [sys.executable, *options, "-c", head + textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_is_exiting_is_true_at_the_exit_of_the_interpreter() -> None:
    program = """
        from multiprocessing import util
        util.Finalize(None, lambda: print(cpython.is_exiting()), exitpriority=1)
        print(cpython.is_exiting())
    """
    assert output_of(program) == "False\nTrue\n"


def test_threads_finalizers_and_exit_handlers_can_be_completed_on_request() -> None:
    program = """
        import atexit, threading, time
        from multiprocessing import util
        atexit.register(print, "exit handler")
        util.Finalize(None, print, ("finalizer",), exitpriority=1)
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        cpython.end()
        print("end")
    """
    assert output_of(program) == "thread\nfinalizer\nexit handler\nend\n"


def test_exit_handlers_and_finalizers_can_be_removed() -> None:
    program = """
        import atexit
        from multiprocessing import util
        atexit.register(print, "exit handler")
        util.Finalize(None, print, ("finalizer",), exitpriority=1)
        cpython.forget_exit_handlers()
        cpython.forget_finalizers()
    """
    assert output_of(program) == ""


def test_hooks_after_a_fork_can_be_called() -> None:
    program = """
        from multiprocessing import util
        class Held: pass
        held = Held()
        util.register_after_fork(held, lambda one: print("hook", one is held))
        cpython.call_fork_hooks()
    """
    assert output_of(program) == "hook True\n"


def test_flush_streams_flushes_stdout() -> None:
    program = """
        import os
        print("flushed")
        cpython.flush_streams()
        os._exit(0)
    """
    assert output_of(program) == "flushed\n"


def test_a_process_that_imports_its_main_module_cannot_start_processes() -> None:
    assert not cpython.is_being_made()
    with cpython.making():
        assert cpython.is_being_made()
        with pytest.raises(RuntimeError, match="bootstrapping phase"):
            cpython.check_not_importing_main()
    assert not cpython.is_being_made()
    cpython.check_not_importing_main()


@pytest.mark.parametrize("kind", ["name", "path"])
def test_a_main_program_is_imported_as_mp_main(kind: str, tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "main_program.py")
    with open(file, "w") as program:
        program.write("print(__name__)\n")
    which = {"name": "main_program", "path": file}[kind]
    imports = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        cpython.import_main({kind!r}, {which!r})
        print(sys.modules["__main__"] is sys.modules["__mp_main__"])
    """
    assert output_of(imports) == "__mp_main__\nTrue\n"


def test_a_forked_process_keeps_stdin_and_has_its_own_native_id() -> None:
    program = """
        import multiprocessing as mp, os, sys, threading

        def look():
            print(sys.stdin is kept, threading.main_thread().native_id == os.getpid(), flush=True)

        kept = sys.stdin
        cpython.leave_stdin()
        process = mp.get_context("fork").Process(target=look)
        process.start()
        process.join()
        threading.main_thread()._native_id = 1
        cpython.renew_native_id()
        print(threading.main_thread().native_id == os.getpid())
    """
    assert output_of(program) == "True True\nTrue\n"


def test_children_that_have_ended_are_removed_from_the_active_children() -> None:
    here, there = mp.get_context("fork").Pipe()
    process = mp.get_context("fork").Process(target=there.recv)
    process.start()
    assert process in mp.active_children()  # where those that have ended are forgotten, so it must not have
    here.send("end")
    os.waitid(os.P_PID, process.pid or 0, os.WEXITED | os.WNOWAIT)
    cpython.forget_ended_children()
    assert process not in mp.active_children()

    class Child:
        """The part of a process that active_children() uses."""

        class _popen:
            @staticmethod
            def poll() -> int:
                return 0

    cpython.note_child(Child)
    assert Child not in mp.active_children()  # looked at, found ended, and forgotten


def test_a_start_method_can_be_added_and_the_default_can_be_suspended() -> None:
    program = """
        import multiprocessing as mp
        cpython.start_methods()["another"] = mp.get_context("spawn")
        print(mp.get_context("another").get_start_method())
        mp.set_start_method("fork")
        with cpython.without_start_method():
            print(mp.get_start_method(allow_none=True))
        print(mp.get_start_method())
    """
    assert output_of(program) == "spawn\nNone\nfork\n"


def test_registered_reducers_are_known_by_type() -> None:
    class Reduced:
        pass

    def reduce(obj: Reduced) -> tuple[type[Reduced], tuple[()]]:
        return Reduced, ()

    reduction.ForkingPickler.register(Reduced, reduce)
    assert cpython.type_reducers()[Reduced] is reduce
    del cpython.type_reducers()[Reduced]


def test_a_duplicated_descriptor_is_listed_until_it_has_been_received() -> None:
    program = """
        import os
        from multiprocessing import resource_sharer
        print(len(cpython.offered_descriptors()))
        offered = resource_sharer.DupFd(0)
        print(len(cpython.offered_descriptors()))
        os.close(offered.detach())
        while cpython.offered_descriptors():
            pass
    """
    assert output_of(program) == "0\n1\n"


def test_the_temporary_folder_is_made_by_the_given_function() -> None:
    program = """
        import os, tempfile
        from multiprocessing import util
        made = tempfile.mkdtemp()
        cpython.place_temporary_folder(lambda: None)
        cpython.place_temporary_folder(lambda: made)
        print(util.get_temp_dir() == made)
        os.rmdir(made)
        again = tempfile.mkdtemp()
        cpython.place_temporary_folder(lambda: again)
        print(util.get_temp_dir() == again)
        os.rmdir(again)
        cpython.place_temporary_folder(lambda: None)
        own = util.get_temp_dir()
        print(os.path.basename(own)[:5])
        util._exit_function()
        print(os.path.exists(own))
    """
    assert output_of(program) == "True\nTrue\npymp-\nFalse\n"


def test_the_log_has_no_settings_before_its_first_use() -> None:
    program = """
        import logging
        from multiprocessing import util
        print(cpython.log_settings())
        util.get_logger().setLevel(logging.INFO)
        print(cpython.log_settings())
        util.log_to_stderr()
        print(cpython.log_settings())
    """
    assert output_of(program) == f"(None, False)\n({logging.INFO}, False)\n({logging.INFO}, True)\n"


def test_the_resource_tracker_and_the_fork_server_are_helpers() -> None:
    program = """
        import multiprocessing as mp
        from multiprocessing import forkserver, shared_memory
        print(len(cpython.helpers()), cpython.resource_tracker()._fd)
        memory = shared_memory.SharedMemory(create=True, size=1)
        memory.unlink()
        print(cpython.resource_tracker()._pid in cpython.helpers(), cpython.resource_tracker()._fd > 2)
        forkserver.ensure_running()
        print(len(cpython.helpers()))
        with cpython.resource_tracker()._lock:
            pass
    """
    assert output_of(program) == "0 None\nTrue True\n2\n"


def test_interpreter_flags_returns_the_options_of_the_interpreter() -> None:
    program = "print(cpython.interpreter_flags())"
    assert output_of(program, "-O", "-B", "-X", "dev") == "['-O', '-B', '-X', 'dev']\n"


def test_random_generator_is_the_generator_of_the_functions_of_random() -> None:
    generator = cpython.random_generator()
    state = random.getstate()
    first = random.random()
    generator.setstate(state)
    assert generator.random() == first


def test_a_process_can_be_a_daemon_of_another_one() -> None:
    program = """
        import multiprocessing as mp, os
        parent = os.getpid()
        if os.fork() == 0:
            cpython.be_daemon("Loader-3", 3, parent)
            own, above = mp.current_process(), mp.parent_process()
            told = own.name, own.daemon, own.pid == os.getpid(), above.name, above.pid == parent, above.is_alive()
            print(told, mp.active_children(), flush=True)
            try:
                mp.Process().start()
            except AssertionError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
    """
    expected = "('Loader-3', True, True, 'MainProcess', True, True) []"
    assert output_of(program).splitlines() == [expected, "daemonic processes are not allowed to have children"]


def test_a_process_cannot_be_a_daemon_of_one_that_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with pytest.raises(ProcessLookupError):
        cpython.be_daemon("Loader-1", 1, ended.pid)
