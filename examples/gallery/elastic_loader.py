"""A data loader whose number of workers changes in the middle of an epoch; the batches stay the same."""

import torch
from torch.utils.data import Dataset

from torchloader import ElasticDataLoader


class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index**2


def epoch(resize):
    torch.manual_seed(0)
    loader = ElasticDataLoader(Squares(), batch_size=8, shuffle=True, num_workers=1)
    batches = []
    for number, batch in enumerate(loader):
        if resize and number == 2:
            loader.resize(3)
        batches.append(batch)
    return torch.cat(batches)


if __name__ == "__main__":
    print("batches stay the same:", torch.equal(epoch(resize=False), epoch(resize=True)))
