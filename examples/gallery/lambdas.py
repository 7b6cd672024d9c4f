"""Lambdas and functions that are made in functions can be sent to workers, and come back as results."""

from dragon.native import Pool


def multiplier(factor):
    return lambda x: factor * x


if __name__ == "__main__":
    with Pool(2) as pool:
        print(pool.map(lambda x: x + 0.5, range(4)))
        triple, quadruple = pool.map(multiplier, (3, 4))
    print(triple(7), quadruple(7))
