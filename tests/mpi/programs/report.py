"""Prints the information that a rank has from Slurm's plugin for Cray systems, which Cray's PMI reads."""

import os
import struct
from pathlib import Path

information = Path(os.environ["PALS_APINFO"]).read_bytes()
(size, begin, count), rank = struct.unpack_from("<3Q", information, 8 + 8 * 7), int(os.environ["PALS_RANKID"])
local, _, node = struct.unpack_from("<3i", information, begin + rank * size)
print(f"rank {rank} of {count}, number {local} on node {node}: {os.environ['SLURMD_NODENAME']}", flush=True)
