"""What every task needs is sent to each worker once, by the pool's initializer."""

from dragon.native import Pool

words = []


def set_words(given):
    words.extend(given)


def count(letter):
    return letter, sum(word.startswith(letter) for word in words)


if __name__ == "__main__":
    many = ["apple", "avocado", "banana", "cherry", "coconut", "cranberry"] * 10_000
    with Pool(2, initializer=set_words, initargs=(many,)) as pool:
        print(pool.map(count, "abc"))
