"""NumPy's views of arrays in the shared memory of another node."""

from __future__ import annotations

from cluster.over_nodes import run
from conftest import Site

HEAD = """
    import gc
    import multiprocessing as mp
    from ctypes import c_int
    import numpy as np
    import dragon
    from dragon.native.array import Array as NativeArray
    from dragon.native.machine import System, current
    from dragon.native.process import Process

    def started(target, *args, node=1):
        process = Process(target, args, policy=System().hostname_policies()[node])
        process.start()
        return process

"""


def test_changes_of_a_view_are_there_once_the_process_has_ended(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(synchronized, raw, native, nested):
            np.frombuffer(synchronized.get_obj())[:] = 1
            np.frombuffer(raw)[1] = 2
            np.frombuffer(native.get_obj())[2] = 3
            np.frombuffer(nested, np.intc).reshape(2, 3)[1] = 4

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            arrays = mp.Array("d", 4), mp.RawArray("d", 4), NativeArray("d", 4), mp.RawArray(c_int * 3, 2)
            started(child, *arrays).join()
            print(*(array[:] for array in arrays[:3]), [list(row) for row in arrays[3]])
        """,
        )
        == "[1.0, 1.0, 1.0, 1.0] [0.0, 2.0, 0.0, 0.0] [0.0, 0.0, 3.0, 0.0] [[0, 0, 0], [4, 4, 4]]\n"
    )


def test_workers_of_a_pool_see_what_was_changed_between_its_tasks(site: Site) -> None:
    """As programs do that share the parameters of a model with a pool's workers."""
    assert (
        run(
            site,
            HEAD,
            """
        def share(array):
            global view
            view = np.frombuffer(array.get_obj())

        def work(number):
            view[number] += number
            return view[-1], current().hostname

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            array = mp.Array("d", 9)
            here = np.frombuffer(array.get_obj())
            with mp.Pool(4, share, (array,)) as pool:
                for step in range(5):
                    here[-1] = step
                    found = pool.map(work, range(8), chunksize=1)
                    assert {last for last, _ in found} == {step}, found
            print(here.tolist())
        """,
        )
        == "[0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 4.0]\n"
    )


def test_a_view_has_the_newest_contents_after_the_lock_was_acquired(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(array):
            view = np.frombuffer(array.get_obj())
            for _ in range(100):
                with array.get_lock():
                    view += 1

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            array = mp.Array("d", 100)
            processes = [started(child, array, node=node) for node in (0, 1, 1, 2)]
            for process in processes:
                process.join()
            print(set(array[:]))
        """,
            3,
        )
        == "{400.0}\n"
    )


def test_views_that_change_other_elements_do_not_undo_each_other(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(raw, queue, start):
            view = np.frombuffer(raw, np.uint8)
            for step in range(1, 51):
                view[start::4] = step
                queue.put(step)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            raw, queue = mp.RawArray("B", 4000), mp.Queue()
            processes = [started(child, raw, queue, start, node=start % 3) for start in range(4)]
            steps = [queue.get() for _ in range(200)]
            for process in processes:
                process.join()
            print(set(raw))
        """,
            3,
        )
        == "{50}\n"
    )


def test_a_message_arrives_after_the_changes_that_were_made_before_it(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(raw, there, back):
            view = np.frombuffer(raw, np.int64)
            while (step := there.get()) is not None:
                assert set(view.tolist()) == {step}, step
                view[:] = -step
                back.put(step)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            raw, there, back = mp.RawArray("q", 1000), mp.Queue(), mp.Queue()
            process = started(child, raw, there, back)
            view = np.frombuffer(raw, np.int64)
            for step in range(1, 50):
                view[:] = step
                there.put(step)
                back.get()
                assert set(view.tolist()) == {-step}, step
            there.put(None)
            process.join()
            print(process.exitcode)
        """,
        )
        == "0\n"
    )


def test_a_process_that_polls_an_event_sees_what_was_changed_before_it_was_set(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        import time

        def child(array, ready, event):
            view = np.frombuffer(array.get_obj())
            ready.set()
            while not event.is_set():
                time.sleep(0.001)
            print(view.tolist())

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            array, ready, event = mp.Array("d", 2), mp.Event(), mp.Event()
            process = started(child, array, ready, event)
            ready.wait()
            np.frombuffer(array.get_obj())[:] = 3
            event.set()
            process.join()
        """,
        )
        == "[3.0, 3.0]\n"
    )


def test_tasks_of_an_event_loop_see_what_was_changed_before_they_were_served(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        import asyncio
        from dragon import aio

        async def changed(array):
            view = np.frombuffer(array.get_obj())
            for _ in range(50):
                async with aio.Lock(array.get_lock()):
                    view += 1

        def child(array):
            asyncio.run(changed(array))

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            array = mp.Array("d", 2, lock=mp.Lock())
            processes = [started(child, array) for _ in range(2)]
            for process in processes:
                process.join()
            print(array[:])
        """,
        )
        == "[100.0, 100.0]\n"
    )


def test_changes_of_an_array_that_was_dropped_are_not_lost(site: Site) -> None:
    assert (
        run(
            site,
            HEAD,
            """
        def child(arrays, queue):
            for number in range(10):
                view = np.frombuffer(arrays.pop())
                view[:] = number
                del view
                gc.collect()
            queue.put("done")

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            arrays, queue = [mp.RawArray("d", 3) for _ in range(10)], mp.Queue()
            process = started(child, arrays, queue)
            queue.get()
            print([int(array[2]) for array in reversed(arrays)] == list(range(10)))
            process.join()
        """,
        )
        == "True\n"
    )
