"""Results in the order in which they are ready, and how many are there: what a progress bar needs."""

from dragon.native import Pool


def collatz(number):
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


if __name__ == "__main__":
    longest, numbers = 0, range(1, 10_001)
    with Pool(4) as pool:
        for done, steps in enumerate(pool.imap_unordered(collatz, numbers, chunksize=500), 1):
            longest = max(longest, steps)
            if done % 2500 == 0:
                print(f"{done} of {len(numbers)}")
    print("longest:", longest, "steps")
