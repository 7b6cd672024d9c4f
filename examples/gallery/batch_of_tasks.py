"""Tasks that take the results of others; each runs as soon as what it needs is there."""

from dragon.workflows.batch import Batch


def simulate(seed):
    return [seed, seed + 1]


def average(parts):
    return sum(map(sum, parts)) / len(parts)


if __name__ == "__main__":
    with Batch() as batch:
        runs = [batch.function(simulate, seed) for seed in range(4)]
        print(batch.function(average, runs).get())
