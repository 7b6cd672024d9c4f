"""select() and connection.wait() for connections and queues of another node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.over_nodes import run
from conftest import Site

PROGRAMS = Path(__file__).parents[1] / "data" / "programs"

HEAD = """
    import os, select, time
    import multiprocessing as mp
    from multiprocessing.connection import wait
    import dragon
    from dragon.native.machine import System, current
    from dragon.native.process import Process

    def elsewhere(target, *args):
        policies = System().hostname_policies()
        policy = next(policy for policy in policies if policy.host_name != current().hostname)
        process = Process(target, args, policy=policy)
        process.start()
        return process

    def is_readable(connection):
        return bool(select.select([connection], [], [], 0)[0])

"""


def test_a_connection_is_readable_while_it_has_messages(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(reader, answer):
            print(is_readable(reader), wait([reader], 0))
            answer.put("ready")
            print(wait([reader]) == [reader], is_readable(reader))
            print(reader.recv(), is_readable(reader), reader.recv(), is_readable(reader), flush=True)
            answer.put("received")
            print(wait([reader], 30) == [reader], reader.recv_bytes())

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            reader, writer = mp.Pipe(False)
            answer = mp.Queue()
            process = elsewhere(child, reader, answer)
            answer.get()
            writer.send(1)
            writer.send(2)
            answer.get()
            writer.send_bytes(b"3" * 2)
            process.join()
        """,
        )
        == "False []\nTrue True\n1 True 2 False\nTrue b'33'\n"
    )


def test_a_queue_of_another_node_is_awaited_together_with_one_of_this_node(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(far, answer):
            near = mp.Queue()
            answer.put("ready")
            print(wait([far, near]) == [far], far.get())
            near.put("near")
            print(wait([far, near]) == [near], near.get(), wait([far, near], 0))

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            far, answer = mp.Queue(), mp.Queue()
            process = elsewhere(child, far, answer)
            answer.get()
            far.put("far")
            process.join()
        """,
        )
        == "True far\nTrue near []\n"
    )


def test_a_connection_is_readable_once_its_other_end_is_closed(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(reader, answer):
            print(is_readable(reader))
            answer.put("ready")
            print(wait([reader]) == [reader])
            try:
                reader.recv()
            except EOFError:
                print("end")

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            reader, writer = mp.Pipe(False)
            answer = mp.Queue()
            process = elsewhere(child, reader, answer)
            answer.get()
            writer.close()
            process.join()
        """,
        )
        == "False\nTrue\nend\n"
    )


def test_a_reader_with_the_lock_sees_what_other_readers_have_taken(site: Site) -> None:
    """Workers of some pools share a pipe like this: a reader that waits with the lock held stops all of them."""
    assert (
        run(
            site,
            HEAD,
            """
        def child(reader, lock, answer, count):
            taken = []
            while len(taken) < count and wait([reader], 10):
                with lock:
                    if is_readable(reader):
                        message = reader.recv()
                        if message is None:
                            break
                        taken.append(message)
            answer.put(taken)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            reader, writer = mp.Pipe(False)
            lock, answer = mp.Lock(), mp.Queue()
            processes = [elsewhere(child, reader, lock, answer, 1000) for _ in range(2)]
            here = mp.Process(target=child, args=(reader, lock, answer, 1000))
            here.start()
            for number in range(600):
                writer.send(number)
                if number % 10 == 0:
                    time.sleep(0.002)
            for _ in range(3):
                writer.send(None)
            print(sorted(number for _ in range(3) for number in answer.get(timeout=30)) == list(range(600)))
        """,
            3,
        )
        == "True\n"
    )


def test_descriptors_are_closed_with_their_connections(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(connections):
            first = connections.pop()
            assert not is_readable(first)
            first.close()  # the connection to the agent, and its bell, stay open
            before = len(os.listdir("/proc/self/fd"))
            for reader in connections:
                assert not is_readable(reader)
                reader.close()
            print(len(os.listdir("/proc/self/fd")) - before)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            pipes = [mp.Pipe(False) for _ in range(20)]
            process = elsewhere(child, [reader for reader, _ in pipes])
            process.join()
        """,
        )
        == "0\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may break connections of other processes")
def test_messages_are_noticed_after_the_connection_to_the_node_has_broken(site: Site) -> None:
    assert run(
        site,
        HEAD,
        f"""
        import sys
        sys.path.insert(0, {str(PROGRAMS)!r})
        from broken_links import break_connections, report_agent
        from dragon.infrastructure.errors import NodeLostError

        def received(reader):
            while True:
                try:
                    return reader.recv()
                except NodeLostError as error:
                    assert "broke" in str(error)

        def child(readers, answer):
            assert not any(is_readable(reader) for reader in readers)
            answer.put("ready")
            for reader in readers:
                print(wait([reader], 30) == [reader], received(reader), is_readable(reader), flush=True)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            answer = mp.Queue()
            report_agent(answer)
            elsewhere(report_agent, answer)
            agents = [answer.get(timeout=30) for _ in range(2)]
            pipes = [mp.Pipe(False) for _ in range(6)]
            process = elsewhere(child, [reader for reader, _ in pipes], answer)
            answer.get(timeout=30)
            for number, (_, writer) in enumerate(pipes):
                while not break_connections(agents):  # the last one is established again
                    time.sleep(0.01)
                time.sleep(0.1 * (number % 2))
                writer.send(number)
                time.sleep(0.5)
            process.join()
        """,
    ) == "".join(f"True {number} False\n" for number in range(6))


def test_messages_keep_their_order_while_readability_is_reported(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        COUNT = 3000

        def child(reader, answer):
            queues = [mp.Queue() for _ in range(3)]
            assert not is_readable(reader)
            answer.put(queues)
            expected = [0] * len(queues)
            while min(expected) < COUNT:
                for queue in wait(queues + [reader]):
                    if queue is reader:
                        reader.recv()
                        continue
                    place = queues.index(queue)
                    assert queue.get() == expected[place], expected
                    expected[place] += 1
            print("in order")

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            reader, writer = mp.Pipe(False)
            answer = mp.Queue()
            process = elsewhere(child, reader, answer)
            queues = answer.get()
            for number in range(COUNT):
                for queue in queues:
                    queue.put(number)
                if number % 3 == 0:
                    writer.send(number)
            process.join()
            print(process.exitcode)
        """,
        )
        == "in order\n0\n"
    )


def test_a_channel_has_a_new_descriptor_after_all_handles_that_used_one_were_closed(site: Site) -> None:
    assert run(
        site,
        HEAD,
        """
        import select

        from dragon.native import Queue
        from dragon.native.machine import System
        from dragon.runtime.handle import Channel

        if __name__ == "__main__":
            queue = Queue(0, policy=System().hostname_policies()[1])
            for number in range(3):
                handles = [Channel._attached(queue._name()) for _ in range(2)]
                descriptors = [handle._fileno() for handle in handles]
                queue.put(number)
                assert all(select.select([each], [], [], 30)[0] for each in descriptors)
                assert handles[0].get() == number
                for handle in handles:
                    handle._close()
            print("ok")
            try:
                Channel._attached((*queue._name()[:2], 7 << 8))
            except ValueError as error:
                print(error)
        """,
    ) == ("ok\nthe run has no node 7\n")
