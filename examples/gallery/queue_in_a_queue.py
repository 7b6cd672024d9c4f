"""A queue is a message too: each question brings the queue for its answer."""

from dragon.native import Process, Queue


def serve(requests):
    while (request := requests.get()) is not None:
        number, answers = request
        answers.put(number**2)


def ask(requests, number, results):
    answers = Queue()
    requests.put((number, answers))
    results.put((number, answers.get()))


if __name__ == "__main__":
    requests, results = Queue(), Queue()
    server = Process(serve, (requests,))
    clients = [Process(ask, (requests, number, results)) for number in (3, 4, 5)]
    for process in (server, *clients):
        process.start()
    print(sorted(results.get() for _ in clients))
    requests.put(None)
    for process in (server, *clients):
        process.join()
