"""A job whose launcher, or a process that this started, is killed: `lost.py srun|python`; prints how the job ended."""

import sys

import psutil

from dragon.native.process import ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup


def of_the_job(name: str) -> list[psutil.Process]:
    """Return the launcher and its own child process, or the processes that it has started for ranks."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if words and words[-1].endswith("/relay.py") and words[0].rpartition("/")[2] == name:
            found.append(process)
    return found


if __name__ == "__main__":
    group = ProcessGroup(pmi="launcher")
    group.add_process(3, ProcessTemplate("sleep", ["600"]))
    group.init()
    group.start()
    of_the_job(sys.argv[1])[0].kill()
    try:
        group.join(30)
    except DragonUserCodeError as error:
        print(error)
    print({code for _, code in group.exit_status})
    group.close()
