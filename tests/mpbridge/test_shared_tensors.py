"""PyTorch tensors in shared memory, in results of pools and in queues: shared on one node, copied between nodes."""

from __future__ import annotations

import pytest

from conftest import Site
from together import failures

pytest.importorskip("torch")


ON_ONE_NODE = """
import multiprocessing as mp
import dragon, socket, torch

context = mp.get_context("dragon")


def full(value):
    return torch.full((3,), float(value)).share_memory_()


def check_tensors_are_received_after_the_workers_of_a_closed_pool_ended():
    with context.Pool(2) as pool:
        pending = [pool.apply_async(full, (i,)) for i in range(4)]
        pool.close()
        pool.join()
        assert [result.get(10).tolist() for result in pending] == [[float(i)] * 3 for i in range(4)]


def pair(_):
    return socket.socketpair()


def check_a_worker_ends_after_its_last_tensor_or_socket_was_received():
    with context.Pool(1, maxtasksperchild=1) as pool:
        received = [tensor.tolist() for tensor in pool.map(full, range(3), chunksize=1)]
        assert received == [[float(i)] * 3 for i in range(3)]
        a, b = pool.apply(pair, (0,))
        a.send(b"sent")
        assert b.recv(4) == b"sent"


kept = torch.zeros(3).share_memory_()


def share():
    return kept


def fill(value):
    kept.fill_(value)


def check_a_received_tensor_is_shared_with_the_worker_that_sent_it():
    with context.Pool(1) as pool:
        received = pool.apply(share)
        pool.apply(fill, (5,))
        assert received.tolist() == [5.0, 5.0, 5.0]


def fail(_):
    raise ValueError(torch.ones(2).share_memory_())


def check_an_error_with_a_tensor_reaches_its_caller():
    with context.Pool(1) as pool:
        try:
            pool.apply(fail, (0,))
        except ValueError as error:
            assert error.args[0].tolist() == [1.0, 1.0]
        else:
            raise AssertionError("no error")


def send(queue):
    queue.put(full(1))


def check_an_error_names_the_ended_process_that_sent_a_tensor():
    queue = context.Queue()
    process = context.Process(target=send, args=(queue,))
    process.start()
    process.join()
    try:
        queue.get()
    except OSError as error:
        told = f"A tensor in shared memory could not be received from process {process.pid}: it must be on this"
        assert error.__notes__[0].startswith(told)
    else:
        raise AssertionError("no error")
"""


def test_tensors_in_shared_memory_are_shared_on_one_node(site: Site) -> None:
    found = failures(site, ON_ONE_NODE, command=False)
    assert (found, found.stderr) == ({}, "")


def test_tensors_sent_to_another_node_are_copies(site: Site) -> None:
    program = site.write("""
        import dragon, torch
        from dragon.infrastructure.policy import Policy
        from dragon.native.machine import Node, System
        from dragon.native.pool import Pool
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        def full(value):
            return torch.full((3,), float(value)).share_memory_()

        def send(queue):
            queue.put(full(7))

        if __name__ == "__main__":
            second = Policy(placement=Policy.Placement.HOST_ID, host_id=Node(System().nodes[1]).h_uid)
            with Pool(1, policy=second, maxtasksperchild=1) as pool:
                print([(tensor.tolist(), tensor.is_shared()) for tensor in pool.map(full, range(2), 1)])
            queue = Queue()
            process = Process(send, (queue,), policy=second)
            process.start()
            process.join()
            tensor = queue.get()
            print(tensor.tolist(), tensor.is_shared())
    """)
    done = site.dragon("--nodes", "2", program)
    expected = "[([0.0, 0.0, 0.0], False), ([1.0, 1.0, 1.0], False)]\n[7.0, 7.0, 7.0] False\n"
    assert done.stdout == expected, done.stderr
