"""A sum over all ranks of a CollectiveGroup; each rank prints its number and the sum."""

import sys

import torch
import torch.distributed as dist

from dragon.ai.collective_group import CollectiveGroup, RankInfo


def train(offset: int, scale: int = 1) -> None:
    info = RankInfo()
    dist.init_process_group("gloo")
    total = torch.tensor([scale * (dist.get_rank() + offset)])
    dist.all_reduce(total)
    place = f"{info.my_local_rank} of {info.my_local_world_size} on node {info.my_node_rank}"
    print(f"rank {info.my_rank} of {info.world_size}, {place}: {int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    group = CollectiveGroup(train, (1,), {"scale": 10}, nprocs=int(sys.argv[1]), port=int(sys.argv[2]))
    group.start()
    group.join()
    group.close()
