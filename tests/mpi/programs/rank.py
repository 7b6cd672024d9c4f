"""One rank of a job, which performs the action that its argument names."""

import ctypes
import os
import sys
import time

deed = sys.argv[1]
if os.environ.get("PMI_RANK", os.environ.get("PMIX_RANK")) == "1":
    if deed == "not-init":
        sys.exit(0)
    if deed == "fail-before-init":
        print("no water", file=sys.stderr, flush=True)
        sys.exit(4)
    if deed == "die-before-init":
        os.kill(os.getpid(), 9)

from mpi4py import MPI  # noqa: E402

world = MPI.COMM_WORLD
if world.rank == 1:
    if deed == "abort":
        world.Abort(5)
    if deed == "leave":
        os._exit(0)
    if deed == "fail":
        print("no coffee", file=sys.stderr, flush=True)
        os._exit(3)
    if deed == "die":
        os.kill(os.getpid(), 9)
world.Barrier()
if deed == "tell-yield" and world.rank == 0:
    library = ctypes.CDLL("libopen-pal.so.80")  # the one that is loaded already
    print("yields" if ctypes.c_bool.in_dll(library, "opal_progress_yield_when_idle") else "spins", flush=True)
if deed == "stay":
    print(os.getpid(), flush=True)
    time.sleep(600)
if deed == "flood" and world.rank == 0:
    for _ in range(200_000):
        print("x" * 80)
total = world.allreduce(world.rank)
hosts = world.gather(MPI.Get_processor_name())
node = world.Split_type(MPI.COMM_TYPE_SHARED)
near = world.gather(node.size)
if world.rank == 0:
    print(f"{world.size} ranks, sum {total}, on {' '.join(hosts)}, {near} of a node", flush=True)
