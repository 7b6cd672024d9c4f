"""Parsl: apps that depend on each other, on the runtime's executors beside its own."""

import multiprocessing as mp

import parsl
from parsl import Config, bash_app, join_app, python_app
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

import dragon  # noqa: F401
from dragon.workflows.parsl_batch_executor import DragonBatchPoolExecutor
from dragon.workflows.parsl_executor import DragonPoolExecutor


@python_app(executors=["pool"])
def double(number):
    return 2 * number


@python_app(executors=["batch"])
def total(inputs=()):
    return sum(inputs)


@python_app(executors=["htex"])
def negative(number):
    return -number


@python_app(executors=["pool"])
def fail():
    raise ValueError("on purpose")


@bash_app(executors=["pool"])
def write(text, stdout="words.txt"):
    return f"echo {text}"


@join_app
def join(count):
    return total(inputs=[double(number) for number in range(count)])


if __name__ == "__main__":
    mp.set_start_method("dragon")
    executors = [
        DragonPoolExecutor(label="pool", max_processes=2),
        DragonBatchPoolExecutor(label="batch", max_processes=2),
        HighThroughputExecutor(
            label="htex",
            address="127.0.0.1",
            max_workers_per_node=1,
            provider=LocalProvider(min_blocks=1, max_blocks=1),
        ),
    ]
    with parsl.load(Config(executors=executors, run_dir="runs")):
        doubled = [double(number) for number in range(10)]
        assert total(inputs=doubled).result() == 90
        assert negative(total(inputs=doubled)).result() == -90
        assert join(5).result() == 20
        print("apps done")
        assert write("hello").result() == 0
        with open("words.txt") as file:
            assert file.read() == "hello\n"
        assert isinstance(fail().exception(), ValueError)
        print("bash done")
