"""Two jobs that find each other by the name of a service."""

import sys
import time

from mpi4py import MPI

if sys.argv[1] == "serve":
    port = MPI.Open_port()
    MPI.Publish_name("ocean", port)
    other = MPI.COMM_WORLD.Accept(port)
    print("heard", other.recv(source=0), flush=True)
    MPI.Unpublish_name("ocean", port)
else:
    while True:
        try:
            port = MPI.Lookup_name("ocean")
            break
        except MPI.Exception:  # not published yet
            time.sleep(0.05)
    other = MPI.COMM_WORLD.Connect(port)
    other.send("waves", dest=0)
other.Disconnect()
