"""What queues between two nodes cost, beside what the network itself does: run on two hosts, in one go.

    dragon --hostlist HOST1,HOST2 benchmarks/network.py
    dragon --nodes 2 benchmarks/network.py                 both on this machine

The plain sockets go between the same two nodes as the queues, by the first address of the first node.
"""

import socket
import statistics
import time

import numpy as np

from dragon.infrastructure.policy import Policy
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue
from dragon.runtime.credentials import Authority, client_context, node_name, server_context
from dragon.runtime.nodes import run_nodes

MIB = 2**20


def there():
    return Policy(placement=Policy.Placement.HOST_NAME, host_name=run_nodes()[1].host_name)


def echo(home):
    requests = Queue(0)
    answers = home.get()
    home.put(requests)
    while (message := requests.get()) is not None:
        answers.put(message)


def connect_back(address, keys, mib, piece):
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if keys:
        connection = client_context(*keys).wrap_socket(connection)
    data = bytes(piece * MIB)
    for _ in range(mib // piece):
        connection.sendall(data)
    while data := connection.recv(64):
        connection.sendall(data)


def fill(queue, count, message):
    for _ in range(count):
        queue.put(message)


def nothing():
    pass


class Network:
    """Plain connections with a process on the other node."""

    def __init__(self):
        addresses = [address for address in run_nodes()[0].ip_addrs if ":" not in address]
        # Nodes that are simulated on one machine have only the loopback address.
        address = min(addresses, key=lambda address: address.startswith("127."))
        self.listener = socket.create_server((address, 0))
        authority = Authority.create()
        self.keys = [(authority.certificate, *authority.issue(node_name(i))) for i in range(2)]

    def connection(self, encrypted, mib=0, piece=1):
        keys = self.keys[1] if encrypted else None
        process = Process(connect_back, (self.listener.getsockname(), keys, mib, piece), policy=there())
        process.start()
        connection, _ = self.listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if encrypted:
            connection = server_context(*self.keys[0]).wrap_socket(connection, server_side=True)
        return connection

    def stream(self, encrypted, mib=1024, piece=1):
        """Return the bytes per second of a stream that sends the same MiB of memory into the same MiB, over and
        over.
        """
        connection, left, memory = self.connection(encrypted, mib, piece), mib * MIB, memoryview(bytearray(piece * MIB))
        start = time.perf_counter()
        while left > 0:
            left -= connection.recv_into(memory[-left % len(memory) :])
        rate = mib * MIB / (time.perf_counter() - start)
        connection.close()
        return rate


def median(measure, rounds=3):
    return statistics.median(measure() for _ in range(rounds))


def microseconds(operation, count=2000):
    for _ in range(200):
        operation()
    start = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - start) / count * 1e6


def round_trips(network):
    connection = network.connection(encrypted=False)

    def raw():
        connection.sendall(b"x")
        connection.recv(64)

    of_socket = median(lambda: microseconds(raw))
    connection.close()
    home, answers = Queue(0), Queue(0)
    home.put(answers)
    process = Process(echo, (home,), policy=there())
    process.start()
    time.sleep(0.3)
    requests = home.get()

    def through_queues():
        requests.put(1)
        answers.get()

    of_queues = median(lambda: microseconds(through_queues))
    requests.put(None)
    process.join()
    print(f"round trip: TCP {of_socket:.0f} us, two queues {of_queues:.0f} us, ratio {of_queues / of_socket:.1f}")


def bulk(message, count):
    def measure():
        queue = Queue(0)
        process = Process(fill, (queue, count, message), policy=there())
        process.start()
        queue.get()
        start = time.perf_counter()
        for _ in range(count - 1):
            queue.get()
        rate = (count - 1) * memoryview(message).nbytes / (time.perf_counter() - start)
        process.join()
        return rate

    return median(measure)


def small(producers=2, count=100_000):
    queue = Queue(0)
    processes = [Process(fill, (queue, count, b"x" * 10), policy=there()) for _ in range(producers)]
    for process in processes:
        process.start()
    queue.get()
    start = time.perf_counter()
    for _ in range(producers * count - 1):
        queue.get()
    rate = producers * count / (time.perf_counter() - start)
    for process in processes:
        process.join()
    return rate


def start_group(size=200):
    group = ProcessGroup()
    group.add_process(size, ProcessTemplate(nothing))
    group.init()
    start = time.perf_counter()
    group.start()
    group.join()
    rate = size / (time.perf_counter() - start)
    group.close()
    return rate


def main():
    network = Network()
    round_trips(network)
    plain, encrypted = median(lambda: network.stream(False)), median(lambda: network.stream(True))
    print(f"streams: TCP {plain / 1e9:.2f} GB/s, TLS {encrypted / 1e9:.2f} GB/s")
    plain_32 = median(lambda: network.stream(False, piece=32))
    encrypted_32 = median(lambda: network.stream(True, piece=32))
    print(f"from 32 MiB to 32 MiB: TCP {plain_32 / 1e9:.2f} GB/s, TLS {encrypted_32 / 1e9:.2f} GB/s")
    array = np.ones(MIB)
    for what, message, count, of_tls, of_tcp in (
        ("1 MiB", bytes(MIB), 600, encrypted, plain),
        ("8 MiB", bytes(8 * MIB), 80, encrypted, plain),
        ("arrays of 8 MiB", array, 80, encrypted, plain),
        ("32 MiB", bytes(32 * MIB), 40, encrypted_32, plain_32),
    ):
        rate = bulk(message, count)
        shares = f"{rate / of_tls:.0%} of TLS, {rate / of_tcp:.0%} of TCP"
        print(f"messages, {what}: {rate / 1e9:.2f} GB/s, {shares}")
    print(f"messages of 10 B, two producers: {median(small):,.0f} a second")
    print(f"group of 200 functions over both nodes: {median(start_group):.0f} a second")


if __name__ == "__main__":
    main()
