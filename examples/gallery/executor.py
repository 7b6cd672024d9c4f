"""An executor of concurrent.futures, over all nodes of the run."""

from concurrent.futures import as_completed

from dragon.workflows.executor import DragonExecutor


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


if __name__ == "__main__":
    candidates = range(10**9, 10**9 + 100)
    with DragonExecutor(max_workers=4) as executor:
        futures = {executor.submit(is_prime, n): n for n in candidates}
        primes = sorted(futures[future] for future in as_completed(futures) if future.result())
    print(*primes)
