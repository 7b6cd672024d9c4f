"""The latency of MPI_Alltoall over message size, printed as the OSU micro-benchmarks print it.

What alltoall.c does, for machines without a compiler: needs mpi4py.

    alltoall.py [-m LARGEST] [-i ITERATIONS] [-x WARMUP]
"""

import argparse
import sys

from mpi4py import MPI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--message-size", type=int, default=1048576, help="largest message of each pair, bytes")
    parser.add_argument("-i", "--iterations", type=int, default=100, help="measured calls for each size")
    parser.add_argument("-x", "--warmup", type=int, default=10, help="calls before them that are not measured")
    options = parser.parse_args()

    world = MPI.COMM_WORLD
    send = bytearray([world.rank % 256]) * (options.message_size * world.size)
    receive = bytearray(len(send))
    if world.rank == 0:
        print(f"# MPI All-to-All Personalized Exchange Latency Test, {world.size} ranks")
        print("# Size       Avg Latency(us)", flush=True)
    size = 1
    while size <= options.message_size:
        part = size * world.size
        buffers = [memoryview(send)[:part], MPI.BYTE], [memoryview(receive)[:part], MPI.BYTE]
        world.Barrier()
        begin = 0.0
        for call in range(-options.warmup, options.iterations):
            if call == 0:
                begin = MPI.Wtime()
            world.Alltoall(*buffers)
        own = (MPI.Wtime() - begin) * 1e6 / options.iterations
        if any(receive[rank * size] != rank % 256 for rank in range(world.size)):
            print(f"rank {world.rank}: wrong data at {size} bytes", file=sys.stderr)
            world.Abort(1)
        total = world.reduce(own)
        if world.rank == 0:
            print(f"{size:<10d}{total / world.size:18.2f}", flush=True)
        size *= 2


if __name__ == "__main__":
    main()
