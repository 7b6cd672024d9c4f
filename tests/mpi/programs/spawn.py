"""A job that starts another one (MPI_Comm_spawn)."""

import sys

from mpi4py import MPI

parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    children = MPI.COMM_WORLD.Spawn(sys.executable, [__file__], maxprocs=2)
    told = children.gather(None, root=MPI.ROOT if MPI.COMM_WORLD.rank == 0 else MPI.PROC_NULL)
    if MPI.COMM_WORLD.rank == 0:
        print(MPI.COMM_WORLD.size, children.Get_remote_size(), told)
    children.Disconnect()
else:
    parent.gather(f"child {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}", root=0)
    parent.Disconnect()
