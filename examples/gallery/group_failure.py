"""The first member that fails ends its group, and join() says which it was and what it wrote last."""

import time

from dragon.native.process import ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup


def simulate(seed):
    if seed == 2:
        raise ArithmeticError(f"no solution for seed {seed}")
    time.sleep(60)


if __name__ == "__main__":
    group = ProcessGroup()
    for seed in range(4):
        group.add_process(nproc=1, template=ProcessTemplate(simulate, args=(seed,)))
    group.init()
    group.start()
    try:
        group.join()
    except DragonUserCodeError as error:
        print("rank 2 is named:", "rank 2" in str(error))
        print(str(error).splitlines()[-1])
    group.close()
