"""A group of functions and programs that start, and are waited for, together; its members' exit codes."""

from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup


def work(number):
    raise SystemExit(number)


if __name__ == "__main__":
    group = ProcessGroup(ignore_error_on_exit=True)
    group.add_process(nproc=2, template=ProcessTemplate("true"))
    group.add_process(nproc=1, template=ProcessTemplate(work, args=(5,)))
    group.add_process(nproc=1, template=ProcessTemplate("sh", ["-c", "exit $CODE"], env={"CODE": "7"}))
    group.init()
    group.start()
    group.join()
    print(sorted(code for _, code in group.exit_status))
    group.close()
