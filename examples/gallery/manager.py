"""A dictionary and a list of multiprocessing's manager, which several processes change."""

import multiprocessing as mp

import dragon


def record(squares, order, number):
    squares[number] = number**2
    order.append(number)


if __name__ == "__main__":
    mp.set_start_method("dragon")
    with mp.Manager() as manager:
        squares, order = manager.dict(), manager.list()
        processes = [mp.Process(target=record, args=(squares, order, number)) for number in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print(sorted(squares.items()), sorted(order))
