"""Results of a function are kept for all processes of the run."""

import time

from dragon.data.ddict import DDict

if __name__ == "__main__":
    with DDict(1, 1, 16 * 2**20) as ddict:

        @ddict.memoize
        def slow(x):
            time.sleep(0.2)
            return x * x

        begin = time.monotonic()
        print([slow(x) for x in (7, 7, 7, 7, 7)])
        print("computed once:", time.monotonic() - begin < 0.8)
