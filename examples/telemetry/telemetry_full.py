"""Run SciPy and PyTorch jobs on all nodes of a Dragon run while every node reports its load."""

from __future__ import annotations

import math
import multiprocessing
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import dragon  # noqa: F401  (makes the start method "dragon" known)
from dragon.native.machine import Node, System, current
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup

# isort: split
import conv
import mnist
import mnist_data
import options
import service
import telem

if TYPE_CHECKING:
    from argparse import Namespace
    from multiprocessing.pool import AsyncResult, Pool
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

SECONDS_BETWEEN_READINGS = 1.0
SECONDS_TO_END = 30


def telem_work(messages: Queue[telem.Message | None], end: Event) -> None:
    """Report the load of this node until the end of telemetry; runs once on every node."""
    telem.leave_interrupts_to_main()
    node = current().hostname
    messages.put(f"This is a telemetry process on node {node}.")
    devices = telem.find_devices()
    if not devices:
        messages.put(f"no GPU on node {node}")
    messages.put(telem.read_node(node, devices))
    while not end.wait(SECONDS_BETWEEN_READINGS):
        messages.put(telem.read_node(node, devices))
    messages.put(f"Telemetry process on node {node} exiting ...")


def post_process(messages: Queue[telem.Message | None], bars: bool) -> None:
    """Show what arrives in the queue, until it is None; runs once, on any node."""
    telem.leave_interrupts_to_main()
    display = telem.BarDisplay() if bars else telem.LineDisplay()
    display.show(f"This is the postprocessing process, {current().hostname}.")
    while (message := messages.get()) is not None:
        display.show(message)
    display.close()
    print("Post process is exiting", flush=True)


@contextmanager
def telemetry(bars: bool, by_service: bool) -> Iterator[Queue[telem.Message | None]]:
    """Run the monitors, or what reads the runtime's own, and the post-processing process.

    Yields the queue of all that is to be shown.
    """
    messages: Queue[telem.Message | None] = multiprocessing.Queue()
    end = multiprocessing.Event()
    # Undone from the last to the first: the post-processing process ends when all others have said their last word.
    with ExitStack() as undo:
        post = multiprocessing.Process(target=post_process, args=(messages, bars))
        post.start()
        undo.callback(post.join)
        undo.callback(messages.put, None)
        if by_service:
            reader = threading.Thread(target=service.report, args=(messages, end, SECONDS_BETWEEN_READINGS))
            reader.start()
            undo.callback(reader.join)
        else:
            monitors = start_monitors(messages, end)
            undo.callback(monitors.close)
            undo.callback(monitors.join, SECONDS_TO_END)
        undo.callback(end.set)
        undo.callback(messages.put, "Shutting down procs")
        yield messages


def start_monitors(messages: Queue[telem.Message | None], end: Event) -> ProcessGroup:
    monitors = ProcessGroup()
    for policy in System().hostname_policies():
        monitors.add_process(1, ProcessTemplate(telem_work, args=(messages, end), policy=policy))
    monitors.init()
    monitors.start()
    return monitors


def run_jobs(
    arguments: Namespace, digits: mnist_data.Digits, messages: Queue[telem.Message | None]
) -> list[mnist.Result]:
    images = conv.Images(conv.number_of_images(arguments.mem, arguments.size), arguments.size, arguments.seed)
    messages.put(f"Number of images: {images.count}")
    messages.put("Launching scipy and mnist jobs")
    with scipy_pool(arguments, images, messages) as scipy, mnist_pool(arguments, digits, messages) as training:
        trained = [training.apply_async(mnist.train, (rate,)) for rate in mnist.learning_rates(arguments.mnist_workers)]
        convolved = [scipy.apply_async(conv.convolve, (number,)) for number in range(images.count)]
        wait_for_all([*trained, *convolved])
        end_pools(scipy, training)
    return [result.get() for result in trained]


def scipy_pool(arguments: Namespace, images: conv.Images, messages: Queue[telem.Message | None]) -> Pool:
    return multiprocessing.Pool(arguments.scipy_workers, conv.start_worker, (images, messages))


def mnist_pool(arguments: Namespace, digits: mnist_data.Digits, messages: Queue[telem.Message | None]) -> Pool:
    training = mnist.Training(
        arguments.batch_size,
        arguments.test_batch_size,
        arguments.epochs,
        arguments.gamma,
        arguments.seed,
        workers_per_node=math.ceil((arguments.scipy_workers + arguments.mnist_workers) / System().nnodes),
    )
    queues = device_queues(arguments.no_cuda)
    return multiprocessing.Pool(arguments.mnist_workers, start_mnist_worker, (queues, digits, training, messages))


def device_queues(no_cuda: bool) -> dict[str, Queue[str]]:
    """Return for every node, by its name, a queue of the devices that its training workers share."""
    queues: dict[str, Queue[str]] = {}
    for node in map(Node, System().nodes):
        queues[node.hostname] = multiprocessing.Queue()
        for name in mnist.device_names(0 if no_cuda else node.num_gpus):
            queues[node.hostname].put(name)
    return queues


def start_mnist_worker(
    devices: dict[str, Queue[str]],
    digits: mnist_data.Digits,
    training: mnist.Training,
    messages: Queue[telem.Message],
) -> None:
    mnist.start_worker(devices[current().hostname], digits, training, messages)


def wait_for_all(results: Sequence[AsyncResult[Any]]) -> None:
    """Wait for all results. An error of a worker is raised at once, not only after the others are done."""
    waiting = list(results)
    while waiting:
        waiting[0].wait(0.2)
        waiting = list(not_ready(waiting))


def not_ready(results: Iterable[AsyncResult[Any]]) -> Iterator[AsyncResult[Any]]:
    for result in results:
        if result.ready():
            result.get()
        else:
            yield result


def end_pools(*pools: Pool) -> None:
    for pool in pools:
        pool.close()
    for pool in pools:
        pool.join()


def run(arguments: Namespace) -> None:
    print(f"Hello from main process {current().hostname}.")
    print("using dragon runtime")
    print(f"Number of nodes: {System().nnodes}")
    print(f"Number of scipy workers: {arguments.scipy_workers}")
    print(f"Number of MNIST workers: {arguments.mnist_workers}", flush=True)
    digits = mnist_data.load(arguments.data)
    results: list[mnist.Result] = []
    try:
        with telemetry(arguments.bars, arguments.service) as messages:
            results = run_jobs(arguments, digits, messages)
    finally:
        # A monitor that failed is an error, but must not cost the results.
        for result in results:
            print(result.line(), flush=True)


def main() -> int:
    arguments = options.parse()
    multiprocessing.set_start_method("dragon")
    try:
        run(arguments)
    except KeyboardInterrupt:
        print("Interrupted", file=sys.stderr)
        return 130
    except mnist_data.DataError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
