"""What a node brings into the cluster: `python3 -i dl_worker.py`.

There is nothing to start here: `run()` on the master starts a worker on every node, which finds the same by itself.
"""

import socket

from dragon.native.machine import current

if __name__ == "__main__":
    node = current()
    gpus = f"GPUs {', '.join(map(str, node.gpus))} ({node.gpu_vendor})" if node.gpus else "no GPUs"
    print(f"{socket.gethostname()}: {node.num_cpus} cores, {gpus}, {node.physical_mem / 2**30:.0f} GiB of memory")
    print("run() on the master starts the worker of this node")
