"""The process that distinguishes a signal to the whole process group from a signal to the launcher alone."""

from __future__ import annotations

from conftest import Site


def test_a_signal_to_the_group_is_detected_on_a_busy_machine(site: Site) -> None:
    done = site.python(
        """
        import os, signal, subprocess, time

        import psutil

        from dragon.launcher.local import Witness

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        witness = Witness([signal.SIGINT])
        (child,) = psutil.Process().children()
        while child.status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)
        child.suspend()  # as one that gets no processor
        os.killpg(0, signal.SIGINT)
        later = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {child.pid}"], start_new_session=True)
        print(witness.time_of(signal.SIGINT) is not None)
        later.wait()
        os.kill(os.getpid(), signal.SIGINT)
        print(witness.time_of(signal.SIGINT))
        witness.close()
        """,
        start_new_session=True,
    )
    assert done.stdout == "True\nNone\n", done.stderr
