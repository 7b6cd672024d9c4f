"""The options and attributes of torch.utils.data.DataLoader: they have the same effect here, or raise an error."""

from __future__ import annotations

import copy
import os
import pickle
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loader_datasets import Counting, NativeThreads, Noisy, count_call

from conftest import Site
from torchloader import ElasticDataLoader

FIXED = ["dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"]


@pytest.mark.parametrize("name", FIXED)
def test_attributes_that_pytorch_fixes_cannot_be_set(name: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    told = []
    for kind in (data.DataLoader, ElasticDataLoader):
        with pytest.raises(ValueError, match="attribute should not be set") as caught:
            setattr(kind(range(8), 4), name, 8)
        told.append(str(caught.value).replace(kind.__name__, ""))
    assert told[0] == told[1]


@pytest.mark.parametrize("name", ["generator", "seed", "rank", "world_size", "in_order", "multiprocessing_context"])
def test_attributes_needed_at_the_start_cannot_be_set(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after ElasticDataLoader is initialized"):
        setattr(ElasticDataLoader(range(8)), name, 0)


WITHOUT_WORKERS = [{"prefetch_factor": 3}, {"persistent_workers": True}, {"multiprocessing_context": "spawn"}]


@pytest.mark.parametrize("options", WITHOUT_WORKERS)
def test_options_of_workers_without_workers_are_errors_as_in_pytorch(options: dict[str, Any]) -> None:
    data = pytest.importorskip("torch.utils.data")
    for kind in (data.DataLoader, ElasticDataLoader):
        with pytest.raises(ValueError, match=next(iter(options))):
            kind(range(8), **options)


def test_attributes_have_the_values_of_a_pytorch_loader() -> None:
    data = pytest.importorskip("torch.utils.data")
    asked: list[dict[str, Any]] = [{}, {"num_workers": 1}, {"batch_sampler": [[1]]}, {"batch_size": None}]
    for options in asked:
        theirs, ours = data.DataLoader(range(8), **options), ElasticDataLoader(range(8), **options)
        names = ["batch_size", "num_workers", "prefetch_factor", "drop_last", "timeout", "in_order", "pin_memory"]
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]


def test_attributes_that_can_be_set_in_pytorch_have_an_effect() -> None:
    with ElasticDataLoader(Counting(8), 4, num_workers=1, collate_fn=list) as loader:
        assert next(iter(loader))[0] == (0, 0)
        loader.collate_fn, loader.worker_init_fn, loader.timeout = tuple, count_call, 30
        assert next(iter(loader)) == ((0, 1), (1, 1), (2, 1), (3, 1))
        loader.num_workers = 0
        loader.num_workers = 2
        loader.prefetch_factor = 3
        assert (loader.workers, loader.prefetch_factor, loader.timeout) == (2, 3, 30)
        assert len(list(loader)) == 2


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [None, True, False])
def test_workers_that_are_not_persistent_are_replaced_in_each_epoch(persistent: bool | None, context: str) -> None:
    options = {"persistent_workers": persistent, "multiprocessing_context": context}
    with ElasticDataLoader(Pid(), 4, num_workers=1, worker_init_fn=count_call, collate_fn=list, **options) as loader:
        stays = context == "spawn" if persistent is None else persistent
        assert loader.persistent_workers is stays
        first, second = ({pid for batch in loader for pid in batch} for _ in range(2))
        assert (first == second) is stays


class Pid:
    """Samples that are the process id of the worker."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize(
    ("context", "kind", "told"),
    [
        ("thread", ValueError, "multiprocessing_context must be one of .*'spawn'.*, not 'thread'"),
        (7, TypeError, "multiprocessing_context must be a start method"),
    ],
)
def test_an_unsupported_start_method_is_an_error(context: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        ElasticDataLoader(range(8), num_workers=1, multiprocessing_context=context)


@pytest.mark.parametrize("context", ["spawn", "fork", "dragon"])
def test_workers_can_have_any_supported_start_method(context: str) -> None:
    with ElasticDataLoader(range(8), 4, num_workers=1, multiprocessing_context=context, collate_fn=list) as loader:
        assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_has_the_same_position(again: Callable[[Any], Any]) -> None:
    with ElasticDataLoader(Noisy(40), 4, shuffle=True, num_workers=1, seed=3, collate_fn=list) as loader:
        expected = [list(loader) for _ in range(2)][1]
        loader.set_epoch(1)
        with again(loader) as other:
            assert (other.num_workers, other.seed, other.state_dict()) == (1, 3, loader.state_dict())
            assert list(other) == expected
        assert list(loader) == expected


class Named(ElasticDataLoader):
    """A loader with additional attributes."""

    def __init__(self, name: str, *args: Any, **options: Any) -> None:
        self.name = name
        super().__init__(*args, **options)
        self.purpose = "training"


def test_a_copy_of_a_loader_has_the_attributes_that_the_program_set() -> None:
    loader = Named("one", range(8), 4, num_workers="auto", max_workers=3)
    loader.extra = 5  # type: ignore[attr-defined]
    loader.collate_fn = list
    other = copy.deepcopy(pickle.loads(pickle.dumps(loader)))
    assert (other.name, other.purpose, other.extra, other.collate_fn) == ("one", "training", 5, list)  # type: ignore[attr-defined]
    assert other.workers == 1
    assert list(other) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_iteration_does_not_use_the_random_generator_of_the_trainer() -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch.utils.data")
    drawn = []
    for kind in (ElasticDataLoader, data.DataLoader, list):
        torch.manual_seed(3)
        list(kind(range(8)))
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[2] != drawn[1]


def test_the_class_accepts_the_type_of_its_batches() -> None:
    alias = ElasticDataLoader[int]
    assert list(alias(range(4), 2, collate_fn=list)) == [[0, 1], [2, 3]]


class Holding(Noisy):
    """A dataset that holds an object from its beginning."""

    def __init__(self, what: Any) -> None:
        super().__init__(8)
        self.held = what


@pytest.mark.parametrize(
    "open_it",
    [
        lambda: sqlite3.connect(":memory:"),
        threading.Lock,
        lambda: (index for index in range(8)),
        lambda: Path(__file__).open(),  # noqa: SIM115
        lambda: Path(__file__).open("rb"),  # noqa: SIM115
    ],
    ids=["sqlite", "lock", "generator", "text file", "file"],
)
def test_the_error_about_a_dataset_that_cannot_be_sent_names_the_object_and_a_remedy(
    open_it: Callable[[], Any],
) -> None:
    held = open_it()
    try:
        with (
            ElasticDataLoader(Holding({"first": held}), num_workers=1, multiprocessing_context="spawn") as loader,
            pytest.raises(TypeError, match=r"^dataset\.held\['first'\] cannot be sent to another process") as caught,
        ):
            iter(loader)
    finally:
        if hasattr(held, "close"):
            held.close()
    assert "have it open files, connections and the like there, at the first __getitem__()" in str(caught.value)
    assert 'or have the workers forked, with multiprocessing_context="fork"' in str(caught.value)


def test_a_collate_fn_has_the_worker_info() -> None:
    data = pytest.importorskip("torch.utils.data")

    def collate(samples: list[int]) -> Any:
        info, batch = data.get_worker_info(), data.default_collate([float(each) for each in samples])
        return batch.tolist(), batch.is_shared(), info.id, type(info.dataset)

    options = {"num_workers": 1, "multiprocessing_context": "fork", "prefetch_factor": 1}
    with ElasticDataLoader(range(8), 4, collate_fn=collate, **options) as loader:
        told = list(loader)
    assert told == [([0.0, 1.0, 2.0, 3.0], False, 0, range), ([4.0, 5.0, 6.0, 7.0], False, 0, range)]


GLOBALS = """
import sys

sys.modules["torch"] = None  # nothing here needs it, and every process would import it

from torchloader import ElasticDataLoader

vocabulary = {}

class Words:
    def __init__(self, words=None): self.words = words
    def __len__(self): return 2
    def __getitem__(self, index): return len(vocabulary), len(self.words)

def fill(worker):
    vocabulary["set"] = "by worker_init_fn"

if __name__ == "__main__":
    vocabulary["one"] = vocabulary["two"] = 1
    print(*ElasticDataLoader(Words(vocabulary), num_workers=0, collate_fn=list))
    new = {"num_workers": 1, "collate_fn": list, "multiprocessing_context": "spawn"}
    print(*ElasticDataLoader(Words(vocabulary), **new))
    print(*ElasticDataLoader(Words(vocabulary), **new, worker_init_fn=fill))
"""


def test_workers_that_are_new_processes_import_modules_afresh(site: Site) -> None:
    done = site.python(GLOBALS)
    assert done.stdout == "[(2, 2)] [(2, 2)]\n[(0, 2)] [(0, 2)]\n[(1, 2)] [(1, 2)]\n", done.stderr


def test_the_shuffled_order_differs_from_that_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch.utils.data")
    generators = [torch.Generator().manual_seed(5) for _ in range(3)]
    theirs = list(data.DataLoader(range(100), shuffle=True, generator=generators[0]))
    ours = list(ElasticDataLoader(range(100), shuffle=True, generator=generators[1]))
    torch.rand(9, generator=generators[2])
    late = list(ElasticDataLoader(range(100), shuffle=True, generator=generators[2]))
    assert sorted(ours) == sorted(theirs)
    assert ours != theirs
    assert ours == late  # only its seed counts


def test_a_loader_is_an_instance_of_pytorchs_class_and_has_its_samplers() -> None:
    data = pytest.importorskip("torch.utils.data")
    asked: list[dict[str, Any]] = [
        {"batch_size": 3},
        {"batch_size": 3, "shuffle": True, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[1]]},
        {"sampler": [3, 1]},
    ]
    for options in asked:
        theirs, ours = data.DataLoader(range(8), **options), ElasticDataLoader(range(8), **options)
        assert isinstance(ours, data.DataLoader)
        assert type(ours.sampler) is type(theirs.sampler)
        assert type(ours.batch_sampler) is type(theirs.batch_sampler)
        assert ours.collate_fn is theirs.collate_fn
        assert len(iter(ours)) == len(iter(theirs)) == len(ours) == len(theirs)
        for own in vars(theirs).keys() - vars(ours).keys():
            assert own.startswith("_"), own
        if theirs.batch_sampler is not None:
            assert len(list(ours.batch_sampler)) == len(list(theirs.batch_sampler))


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}, {"batch_size": None}])
@pytest.mark.parametrize("length", [0, 1, 5, 24, 29])
def test_the_sampler_of_a_rank_has_the_samples_of_its_batches(options: dict[str, Any], length: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    for rank in range(3):
        loader = ElasticDataLoader(
            range(length),
            **{"batch_size": 4, "rank": rank, "world_size": 3, "collate_fn": lambda made: made, **options},
        )
        assert isinstance(loader.sampler, data.DistributedSampler)
        for epoch in (0, 1, 4):
            loader.sampler.set_epoch(epoch)  # which is the loader's
            samples, batches = list(loader.sampler), list(loader.batch_sampler or loader.sampler)
            assert len(samples) == len(loader.sampler)
            assert list(loader) == batches


def test_the_vars_of_a_loader_are_options_for_an_equal_one() -> None:
    pytest.importorskip("torch")
    loader = ElasticDataLoader(range(8), 3, num_workers=2, prefetch_factor=4, timeout=9, seed=5, max_workers=7)
    loader.resize(3)
    loader.collate_fn = tuple
    options = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    del options["sampler"], options["batch_sampler"]
    again = ElasticDataLoader(**options)
    assert (again.num_workers, again.prefetch_factor, again.timeout, again.seed) == (3, 4, 9, 5)
    assert (again.max_workers, again.collate_fn, again.batch_size) == (7, tuple, 3)
    loader.resize(0)
    assert (vars(loader)["num_workers"], vars(loader)["prefetch_factor"]) == (0, None)


def test_a_timeout_has_no_effect_without_workers() -> None:
    data = pytest.importorskip("torch.utils.data")
    with pytest.raises(AssertionError):
        iter(data.DataLoader(range(8), timeout=1e-9))
    assert len(list(ElasticDataLoader(range(8), 4, timeout=1e-9, collate_fn=list))) == 2


def test_a_device_of_pinned_memory_has_no_effect() -> None:
    pytest.importorskip("torch")
    options = {"pin_memory": True, "pin_memory_device": "cuda:7"}
    assert list(ElasticDataLoader(range(8), 4, collate_fn=list, **options)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_reading_one_batch_counts_as_an_epoch_for_a_single_trainer() -> None:
    loader, other = (ElasticDataLoader(range(40), 4, shuffle=True, seed=3, collate_fn=list) for _ in range(2))
    looks = [next(iter(loader)) for _ in range(3)]
    whole = [list(other) for _ in range(3)]
    assert looks == [first for first, *_ in whole]
    assert looks[0] != looks[1]


class Priorities:
    """Samples that are the priority of the process that reads them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.nice(0)


def priorities(**options: Any) -> set[int]:
    """Return the priorities of the workers."""
    # A batch for a single worker that is not there yet is the trainer's to make.
    with ElasticDataLoader(
        Priorities(), 1, num_workers=1, collate_fn=list, persistent_workers=True, **options
    ) as loader:
        while loader._crew.ready < 1:
            list(loader)
        return {given for (given,) in loader}


def lowered(nice: int) -> set[int]:
    """Return the priority of the trainer, lowered by `nice`."""
    return {min(19, os.nice(0) + nice)}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_have_a_lower_priority_only_on_request(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert priorities(multiprocessing_context=context) == lowered(0)
    assert priorities(multiprocessing_context=context, nice=3) == lowered(3)
    monkeypatch.setenv("TORCHLOADER_NICE", "10")
    assert priorities(multiprocessing_context=context) == lowered(10)
    assert priorities(multiprocessing_context=context, nice=0) == lowered(0)


@pytest.mark.parametrize(("variable", "options"), [("0", {"nice": 20}), ("low", {}), ("0", {"nice": -1})])
def test_an_invalid_priority_is_refused(
    variable: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHLOADER_NICE", variable)
    with pytest.raises(ValueError, match="must be"):
        ElasticDataLoader(range(8), num_workers=1, **options)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_linear_algebra_of_a_worker_uses_one_thread(method: str) -> None:
    threads = own_threads()
    with threads_of_a_worker(method) as loader:
        assert list(loader) == [[1], [1]]
    assert own_threads() == threads


def test_a_variable_sets_the_threads_of_linear_algebra_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = own_threads()
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(threads))
    with threads_of_a_worker("fork") as loader:
        assert list(loader) == [[threads], [threads]]


def own_threads() -> int:
    pytest.importorskip("numpy")
    pytest.importorskip("threadpoolctl")
    return NativeThreads()[0]


def threads_of_a_worker(method: str) -> ElasticDataLoader:
    return ElasticDataLoader(NativeThreads(), 1, num_workers=1, collate_fn=list, multiprocessing_context=method)
