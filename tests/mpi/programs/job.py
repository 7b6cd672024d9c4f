"""A group of ranks: `job.py COUNT PROGRAM ARGUMENT...`; prints how it ended."""

import sys

from dragon.native.process import ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup

if __name__ == "__main__":
    count, program, *arguments = sys.argv[1:]
    group = ProcessGroup(pmi_enabled=True)
    group.add_process(nproc=int(count), template=ProcessTemplate(program, arguments))
    group.init()
    group.start()
    try:
        group.join(timeout=60)
    except DragonUserCodeError as error:
        print(error)
    group.close()
