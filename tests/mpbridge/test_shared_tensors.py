"""PyTorch tensors in shared memory, in results of pools and in queues: shared on one node, copied between nodes."""

from __future__ import annotations

import pytest

from conftest import Site

pytest.importorskip("torch")


def test_shared_tensors_are_received_after_the_workers_of_a_closed_pool_ended(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon, torch

        def full(value):
            return torch.full((3,), float(value)).share_memory_()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(2) as pool:
                pending = [pool.apply_async(full, (i,)) for i in range(4)]
                pool.close()
                pool.join()
                print([result.get(10).tolist() for result in pending])
    """)
    assert done.stdout == f"{[[float(i)] * 3 for i in range(4)]}\n", done.stderr


def test_a_worker_ends_after_its_last_shared_tensor_or_socket_was_received(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon, socket, torch

        def full(value):
            return torch.full((3,), float(value)).share_memory_()

        def pair(_):
            return socket.socketpair()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(1, maxtasksperchild=1) as pool:
                print([tensor.tolist() for tensor in pool.map(full, range(3), chunksize=1)])
                a, b = pool.apply(pair, (0,))
                a.send(b"sent")
                print(b.recv(4))
    """)
    assert done.stdout == f"{[[float(i)] * 3 for i in range(3)]}\nb'sent'\n", done.stderr


def test_a_received_tensor_is_shared_with_the_worker_that_sent_it(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon, torch

        kept = torch.zeros(3).share_memory_()

        def share():
            return kept

        def fill(value):
            kept.fill_(value)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(1) as pool:
                received = pool.apply(share)
                pool.apply(fill, (5,))
                print(received.tolist())
    """)
    assert done.stdout == "[5.0, 5.0, 5.0]\n", done.stderr


def test_an_error_with_a_shared_tensor_reaches_its_caller(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon, torch

        def fail(_):
            raise ValueError(torch.ones(2).share_memory_())

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(1) as pool:
                try:
                    pool.apply(fail, (0,))
                except ValueError as error:
                    print(error.args[0].tolist())
    """)
    assert done.stdout == "[1.0, 1.0]\n", done.stderr


def test_an_error_names_the_ended_process_that_sent_a_tensor(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon, torch

        def send(queue):
            queue.put(torch.ones(2).share_memory_())

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            process = mp.Process(target=send, args=(queue,))
            process.start()
            process.join()
            try:
                queue.get()
            except OSError as error:
                print(error.__notes__[0].startswith(
                    f"A tensor in shared memory could not be received from process {process.pid}: it must be on this"
                ))
    """)
    assert done.stdout == "True\n", done.stderr


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
