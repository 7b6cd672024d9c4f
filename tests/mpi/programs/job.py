"""Runs a group of ranks and prints how it ended: `job.py [--pmi BACKEND] COUNT PROGRAM ARGUMENT...`"""

import argparse

from dragon.native.process import ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--pmi", default="auto")
    parser.add_argument("count", type=int)
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    group = ProcessGroup(pmi=options.pmi)
    group.add_process(nproc=options.count, template=ProcessTemplate(options.program, options.arguments))
    group.init()
    group.start()
    try:
        group.join(timeout=60)
    except DragonUserCodeError as error:
        print(error)
    group.close()
