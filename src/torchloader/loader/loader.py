"""A DataLoader whose number of workers can change while it is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import util as mp_util
from multiprocessing.context import BaseContext
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from dragon.node_files import NodeFile
from torchloader.loader.base import HAS_TORCH, Base, RankSampler, samplers_of
from torchloader.loader.crew import Crew
from torchloader.loader.exchange import joined
from torchloader.loader.iteration import Iteration, Position
from torchloader.loader.making import Maker, StreamMaker, default_collate
from torchloader.loader.options import (
    WorkerPolicy,
    check_number,
    check_options,
    check_timeout,
    check_workers,
    is_iterable_style,
    nodes_for,
)
from torchloader.loader.order import (
    MapOrder,
    SampleOrder,
    SamplerOrder,
    place_of,
    rank_of,
    restore,
    seed_of,
    state_of,
    warn_of_ranks,
)
from torchloader.loader.streams import StreamOrder
from torchloader.loader.tuner import Tuner, Tuning, by_environment, tuner_of


@dataclass(frozen=True, slots=True)
class Counters:
    """What a loader has done since it was made."""

    batches: int  # batches given to the trainer
    samples: int  # samples given to the trainer
    waited: float  # seconds in which the trainer wanted a batch and none was ready
    computed: float  # seconds between batches in which the trainer did not wait
    made: int  # samples that workers have made
    service: float  # average seconds of a worker's time per sample
    depth: int  # batches that are ready now
    workers: int  # workers that take batches now
    replaced: int  # workers that died
    shared: int = 0  # batches that workers of other loaders have made (`shared_as`)


_PREFETCH = 2

# Options that are the same-named attributes, and those that are kept elsewhere but lie in vars() as well.
_OWN = ["max_workers", "streams", "snapshot_every_n_steps", "workers_on", "nice", "shared_as"]
_SETTABLE = ["pin_memory", "timeout", "worker_init_fn"]
_PLAIN = ["dataset", "generator", "pin_memory_device", "in_order", *_SETTABLE, *_OWN]
_REFLECTED = ["num_workers", "multiprocessing_context", "prefetch_factor", "persistent_workers"]
# What PyTorch's loader lets nobody set, and what ours needs at the start.
_FIXED = {*_PLAIN, "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"} - {*_SETTABLE} | {
    *("multiprocessing_context", "seed", "rank", "world_size")
}

if TYPE_CHECKING:
    from torch import Generator
    from torch.utils.data import DataLoader
    from typing_extensions import TypeVar

    Batch = TypeVar("Batch", default=Any)
else:
    from typing import TypeVar

    Batch = TypeVar("Batch")


class ElasticDataLoader(Base, Generic[Batch]):
    """Batches of a dataset, made by a number of worker processes that can change at any time.

    Where PyTorch is installed this is a torch.utils.data.DataLoader. It takes the same arguments, and more:

    Args:
        num_workers: the number of loading workers at first. 0 loads in the trainer. "auto" finds the smallest number
            with which the trainer hardly waits, within the cores of the node, which all such loaders share.
        max_workers: the largest number that "auto" may choose; by default eight for each core.
        multiprocessing_context: how workers start; by default with the start method of multiprocessing. "fork" forks
            them from the trainer. With any other method they are new processes, to which the dataset is sent.
        persistent_workers: whether workers stay from one epoch to the next: by default new processes, not forked ones.
        seed: with the epoch, determines order and content. By default that of `generator`, else PyTorch's; with several
            ranks 0, as all must have the same.
        rank, world_size: the rank of this trainer, and the number of trainers that share each epoch. `batch_size` is
            per rank.
        streams: the number of parts in which an iterable-style dataset is read, which get_worker_info() returns as
            num_workers. By default the number of workers at first. Workers beyond the number of streams are idle.
        snapshot_every_n_steps: the number of batches of a stream between two calls of its state_dict().
        workers_on: the name of a node, or several, over which the workers are spread in turn.
        nice: by how much the priority of the workers is below the trainer's, from 0 to 19. By default 0, and 10 in jobs
            of torchloader.
        in_order: False gives batches as soon as they are ready; those of one stream stay in order.
        shared_as: a name that loaders of several programs on a node use if they read the same data: each batch is made
            once for all of them.

    The batches are the same, bit by bit, with any number of workers, however often it changes and whichever of them
    die: before each batch the random generators of Python, NumPy and PyTorch are seeded from (seed, epoch, index), for
    an iterable-style dataset from (seed, epoch, stream, batch). Each iteration is the next epoch unless set_epoch()
    chooses another; with several ranks it counts once it has given its last batch.

    Raises ValueError for arguments that exclude each other, TypeError for one of a wrong type. While iterating: the
    error that the dataset raised, with the worker's traceback as a note; LoadingError if workers cannot be kept alive;
    TimeoutError after `timeout` seconds.

    Examples:
        >>> from torchloader import ElasticDataLoader
        >>> loader = ElasticDataLoader(range(8), batch_size=4, num_workers=1)
        >>> for batch in loader:
        ...     loader.resize(2)
        ...     batch.tolist()
        [0, 1, 2, 3]
        [4, 5, 6, 7]
        >>> loader.close()
    """

    _DataLoader__initialized = False  # PyTorch's, which subclasses set to replace a sampler
    collate_fn: Any  # None without PyTorch where none was given
    worker_init_fn: Callable[[int], None] | None
    timeout: float  # seconds to wait for a batch from the workers; 0 means no limit
    max_workers: int | None
    streams: int | None  # None for a map-style dataset; 0 means one for which get_worker_info() is None
    snapshot_every_n_steps: int
    workers_on: str | Sequence[str] | None
    nice: int
    shared_as: str | None

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Batch] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        max_workers: int | None = None,
        streams: int | None = None,
        snapshot_every_n_steps: int = 1,
        workers_on: str | Sequence[str] | None = None,
        nice: int | None = None,
        shared_as: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        before = vars(self).keys() - {"_DataLoader__initialized"}  # what a subclass has set
        self._DataLoader__initialized = False
        # An iterable-style dataset may share its samples among ranks itself.
        is_streaming = is_iterable_style(dataset)
        if num_workers != "auto":
            num_workers, given["streams"] = by_environment(num_workers, streams, is_streaming)
        is_placed = rank is not None or world_size is not None
        self._is_unaware = not (is_streaming or is_placed or sampler is not None or batch_sampler is not None)
        self._place = rank, world_size = place_of(rank, world_size)
        check_options(given, is_streaming, num_workers, world_size)
        if is_streaming:
            given["streams"] = int(num_workers if given["streams"] is None else given["streams"])
        # Workers of other nodes are new processes, whatever the start method is.
        self._policy = WorkerPolicy("dragon" if workers_on else multiprocessing_context, persistent_workers, nice)
        given["nice"] = self._policy.nice
        vars(self).update({name: given[name] for name in _PLAIN}, drop_last=drop_last)
        self.batch_size = None if batch_sampler is not None else batch_size
        self._context, self._persistent_workers, self._given_seed = multiprocessing_context, persistent_workers, seed
        self._given_samplers: Samplers = sampler, batch_sampler
        self._seed_is_given = seed is not None or generator is not None
        self._own_sampler: Iterable[Any] | None = sampler if batch_sampler is None else batch_sampler
        batch, seed = (batch_size, bool(drop_last)), seed_of(seed, generator, world_size)
        if is_streaming:
            self._order: MapOrder | StreamOrder = StreamOrder(dataset, seed, *batch, given["streams"], rank, world_size)
        else:
            self._order = _order_of(dataset, seed, batch, self._given_samplers, bool(shuffle), self._place)
        source = generator if generator is not None or self._given_seed is None else int(self._given_seed)
        self.sampler, self.batch_sampler = samplers_of(
            dataset,
            None if isinstance(self._order, StreamOrder) else self._order,
            self._given_samplers,
            (self.batch_size, drop_last),
            source,
            self.set_epoch,
        )
        self._deciding = self._index_sampler
        functions, is_batched = (collate_fn, worker_init_fn), self._order.gives_batches or batch_size is not None
        self._maker = (
            StreamMaker(dataset, *functions, *batch, seed, snapshot_every_n_steps)
            if is_streaming
            else Maker(dataset, *functions, is_batched, seed)
        )
        self.collate_fn = self._maker.collate_fn
        file, self._maker.membership = joined(shared_as, self._maker.is_map_style)
        nodes, at_first = nodes_for(workers_on, multiprocessing_context), 1 if num_workers == "auto" else num_workers
        self._crew = Crew(self._maker, prefetch_factor or _PREFETCH, at_first, self._policy, nodes)
        self._tuner: Tuner | None = None
        if num_workers == "auto":
            self._tuner = tuner_of(max_workers, given["streams"], nodes)
        # Which does nothing in a process that is forked from the trainer: the workers are not its own.
        self._finalizer = mp_util.Finalize(self, _close, (self._crew, file), exitpriority=15)
        self._next_epoch = self._epoch = 0
        self._position: Position = 0
        self._sampler_state: dict[str, Any] | None = None  # when the epoch under way began
        self._digest = 0
        self._resumed: tuple[Position, int | None] = 0, None  # and the digest of what comes before it
        # Choices of the next epoch so far, how often it has begun before, and its batches given at last.
        self._choices = self._begun = self._taken = 0
        self._given = [0, 0, 0.0, 0.0]  # the first four Counters
        if world_size > 1:
            self._is_accelerate_prepared = True  # Accelerate would share this rank's samples once more
        self._reflect()
        self._DataLoader__initialized = True
        self._known: set[str] = vars(self).keys() - before

    def __setattr__(self, name: str, value: object) -> None:
        if self._DataLoader__initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        if name == "timeout":
            check_timeout(value)
        if name in ("collate_fn", "worker_init_fn"):  # workers use a new one from the next epoch on
            setattr(self._maker, name, value)
            if name == "collate_fn" and value is None and HAS_TORCH:
                value = default_collate(self._maker.batched)
        super().__setattr__(name, value)

    def _options(self) -> dict[str, Any]:
        """Return the constructor arguments that make an equal loader."""
        sampler, batch_sampler = self._given_samplers
        options = {name: getattr(self, name) for name in [*_PLAIN, *_REFLECTED, "seed", "rank", "world_size"]}
        return options | {
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "batch_size": 1 if batch_sampler is not None else self.batch_size,
            "drop_last": self.drop_last and batch_sampler is None,
            "shuffle": self._order.shuffle,
            "num_workers": self.num_workers if self._tuner is None else "auto",
            "collate_fn": self._maker.collate_fn,
            "persistent_workers": self._persistent_workers if self.workers else None,
        }

    def _reflect(self) -> None:
        """Store the options in vars(), from which frameworks construct a similar loader."""
        options = self._options()
        vars(self).update({name: options[name] for name in _REFLECTED})
        if self._given_seed is not None:
            vars(self)["seed"] = self._given_seed  # not rank and world_size, as the sampler divides the samples already

    def __class_getitem__(cls, batch: object) -> GenericAlias:
        return GenericAlias(cls, batch)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy: a loader of the same options at the same position."""
        kept = ("_is_unaware", "_seed_is_given", "_next_epoch", "_resumed", "_begun", "_taken")
        place = ("_epoch", "_position", "_sampler_state", "_digest")
        fields = {name: value for name, value in vars(self).items() if name in kept + place or name not in self._known}
        del fields["_known"]
        return {"options": self._options(), "fields": fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        object.__setattr__(self, "_DataLoader__initialized", False)
        ElasticDataLoader.__init__(self, **state["options"])
        vars(self).update(state["fields"])

    def __len__(self) -> int:
        self._take_over_sampler()
        return len(self._order)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self._is_unaware = self._is_unaware and not warn_of_ranks()
        return self._get_iterator()

    @property
    def _index_sampler(self) -> Iterable[Any] | None:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def _take_over_sampler(self) -> None:
        """Let the sampler or batch sampler decide the order that a subclass has set in place of the loader's own."""
        sampler, batched = self._index_sampler, self.batch_sampler is not None
        if sampler is not self._deciding and not isinstance(self._order, StreamOrder):
            self._deciding = self._own_sampler = sampler
            self._given_samplers = (None, sampler) if batched else (sampler, None)
            self._order = _order_of(self.dataset, self.seed, (None, False), self._given_samplers, False, (0, 1))

    def _get_iterator(self) -> Iterator[Batch]:  # type: ignore[override]  # which such subclasses call, as PyTorch's
        self._take_over_sampler()
        self._epoch, (self._position, before) = self._next_epoch, self._resumed
        self._sampler_state = self._state_of_sampler()
        self._digest = before or 0
        iteration: Iteration[Batch] = Iteration(self, self._epoch, self._position, before)
        if self.world_size == 1:
            self._go_to(self._epoch + 1)
        else:
            if self._taken > 1 or self._begun > 1:
                warnings.warn(
                    f"epoch {self._next_epoch} begins once more with its first batches, since its last iteration was "
                    "left before the end: with several ranks only whole epochs count. Call set_epoch() to go on to "
                    "another",
                    stacklevel=3,
                )
            self._begun, self._taken = self._begun + 1, 0
        iteration.begin()
        return iteration

    def _go_to(self, epoch: int, resumed: tuple[Position, int | None] = (0, None)) -> None:
        self._next_epoch, self._resumed, self._begun, self._taken = epoch, resumed, 0, 0
        self._choices += 1
        if isinstance(self.sampler, RankSampler) and self.world_size > 1:
            self.sampler.epoch = epoch

    def _note_last(self, epoch: int, choices: int) -> None:
        """Go on to the next epoch when all batches are given, unless the program has chosen another meanwhile."""
        if self._choices == choices:
            self._go_to(epoch + 1)

    # ---- settings

    @property
    def seed(self) -> int:
        """The seed that, with the epoch, determines the order and content of batches."""
        return self._maker.seed

    @property
    def rank(self) -> int:
        """The rank of this trainer among the `world_size` trainers that share each epoch."""
        return self._place[0]

    @property
    def world_size(self) -> int:
        """The number of trainers that share each epoch."""
        return self._place[1]

    @property
    def has_shared_place(self) -> bool:
        """Whether all ranks that took equally many batches have the same position, so that one rank's state serves all.

        False for streams, with a sampler or batch sampler, and with in_order=False: there each rank has its own
        position.
        """
        return self.in_order and isinstance(self._order, SampleOrder)

    @property
    def workers(self) -> int:
        """The requested number of loading workers. Setting it calls resize()."""
        return self._crew.size

    @workers.setter
    def workers(self, workers: int) -> None:
        self.resize(workers)

    num_workers = workers

    def resize(self, workers: int, workers_on: str | Sequence[str] | None = None) -> None:
        """Set the number of loading workers, and end "auto". May be called from any thread at any time, and does not
        wait.

        New workers take batches once they are ready; those that leave finish the batch that they are making.
        `workers_on` names the nodes that the workers are spread over in turn; by default they stay where they are.

        Raises ValueError if the loader is closed, or for `workers_on` if the loader was made without it (its workers
        may be forked from the trainer).
        """
        check_workers(workers=workers)
        nodes = None
        if workers_on is not None:
            if self.workers_on is None:
                raise ValueError(
                    f"resize() gets workers_on={workers_on!r}, and the loader was made without: make it with "
                    "workers_on=, at first the name of the trainer's node"
                )
            nodes = nodes_for(workers_on, None)
        tuner, self._tuner = self._tuner, None
        if tuner is not None:
            tuner.close()
        self._crew.resize(workers, nodes)
        if workers_on is not None:
            vars(self)["workers_on"] = workers_on
        self._reflect()

    @property
    def tuning(self) -> Tuning | None:
        """What "auto" has chosen and last measured; str() of it is one line. None before the first measurement and
        without "auto"."""
        return None if self._tuner is None else self._tuner.tuning

    @property
    def persistent_workers(self) -> bool:  # type: ignore[override]
        """Whether workers stay from one epoch to the next."""
        return self._policy.stays and self.workers > 0

    @property
    def prefetch_factor(self) -> int | None:
        """The number of batches that each worker makes ahead; None without workers."""
        return self._crew.assignments.prefetch if self.workers else None

    @prefetch_factor.setter
    def prefetch_factor(self, prefetch: int | None) -> None:
        check_number(1, prefetch_factor=prefetch)
        self._crew.assignments.prefetch = int(prefetch or 1)
        self._reflect()

    @property  # type: ignore[misc]
    def multiprocessing_context(self) -> str | BaseContext | None:
        """The start method or context that was given; None without workers."""
        return self._context if self.workers else None

    # ---- what it has done

    @property
    def counters(self) -> Counters:
        """What the loader has done so far."""
        crew, tally, (batches, samples, waited, computed) = self._crew, self._crew.tally, self._given
        made = tally.samples, tally.seconds / max(1, tally.samples)
        now = crew.depth, crew.ready
        return Counters(int(batches), int(samples), waited, computed, *made, *now, tally.died, tally.shared)

    def _note(self, samples: int, waited: float, computed: float) -> None:
        given = self._given
        given[0] += 1
        given[1] += samples
        given[2] += waited
        given[3] += computed
        tuner = self._tuner  # which resize() in another thread takes away
        if tuner is not None:
            tuner.note(self._crew, waited, computed)

    def close(self) -> None:
        """Dismiss the workers. The loader and its iterators cannot be used afterwards: they raise ValueError."""
        if self._tuner is not None:
            self._tuner.close()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # ---- where it stands

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Raises ValueError if it is negative."""
        check_number(0, epoch=epoch)
        self._go_to(int(epoch), self._resumed if epoch == self._next_epoch else (0, None))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the trainer, after the last batch that it received. The state can be written as JSON.

        It can be loaded with any number of workers and, if the global batch size is the same, of ranks. With
        in_order=False it also has the later batches that were given, and with several ranks belongs to its rank. The
        states of a sampler's generators are included.
        """
        place = self._order.state_of(self._position)
        state: dict[str, Any] = {"version": 1, "seed": self.seed, "epoch": self._epoch, **place}
        if self._own_sampler is not None:
            begun = self._sampler_state
            state["sampler"] = self._state_of_sampler() if begun is None else begun
            state["digest"], state["rank"] = self._digest, rank_of(self._own_sampler)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the next iteration from a state. A loader without a given seed takes the seed of the state.

        Raises ValueError for a state of another seed or sampler; of another rank, if the sampler has generators or
        batches were given out of order; and for what is not a state.
        """
        if (
            not isinstance(state, dict)
            or state.get("version") != 1
            or not {"seed", "epoch", "position"} <= state.keys()
        ):
            raise ValueError("this is not the state of an ElasticDataLoader")
        check_number(seed=state["seed"])
        check_number(0, epoch=state["epoch"])
        position = self._order.place(state)
        if state["seed"] != self.seed and self._seed_is_given:
            raise ValueError(f"the state is of seed {state['seed']}, this loader has {self.seed}: pass seed=…")
        before = self._restore_sampler(state) if self._own_sampler is not None and "sampler" in state else None
        self._order.seed = self._maker.seed = int(state["seed"])
        self._epoch, self._position = int(state["epoch"]), position
        self._go_to(self._epoch, (self._position, before))

    def _restore_sampler(self, state: dict[str, Any]) -> int | None:
        sources, rank = state["sampler"], rank_of(self._own_sampler)
        if state["rank"] != rank and any(not source.endswith(".epoch") for source in sources):
            raise ValueError(
                f"the state is of rank {state['rank']}, whose sampler has generators of its own, this is rank {rank}: "
                "save the state of each rank, or have the sampler draw from set_epoch() and a seed"
            )
        restore(self._own_sampler, sources)
        self._sampler_state, self._digest = sources, state["digest"]
        return self._digest if state["rank"] == rank else None

    def _state_of_sampler(self) -> dict[str, Any] | None:
        return None if self._own_sampler is None else state_of(self._own_sampler)

    def _note_position(self, epoch: int, position: Position, digest: int) -> None:
        # Not one by one: PyTorch's loader and this one look at each attribute that is set.
        vars(self).update(_epoch=epoch, _position=position, _digest=digest, _taken=self._taken + 1)

    def _note_end(self, epoch: int) -> None:
        self._epoch, self._position, self._sampler_state, self._digest = epoch + 1, 0, None, 0


def _close(crew: Crew, file: NodeFile | None) -> None:
    crew.close()
    if file is not None:
        file.close()


Samplers = tuple[Iterable[Any] | None, Iterable[Any] | None]


def _order_of(
    dataset: Any, seed: int, batch: tuple[int | None, bool], samplers: Samplers, shuffle: bool, place: tuple[int, int]
) -> MapOrder:
    """Return the order of a map-style dataset, for (batch size, drop_last) and (rank, world size)."""
    sampler, batch_sampler = samplers
    if batch_sampler is not None:
        return SamplerOrder(batch_sampler, seed, None, False, gives_batches=True)
    if sampler is not None:
        return SamplerOrder(sampler, seed, *batch)
    len(dataset)  # where it raises it does so here
    return SampleOrder(dataset, seed, *batch, *place, shuffle=shuffle)


def elastic(loader: DataLoader[Any], **changes: object) -> ElasticDataLoader:
    """Make an ElasticDataLoader from the settings of a DataLoader of PyTorch, which is not changed. `changes` are
    options that replace those settings, such as num_workers="auto", or rank and world_size.

    A plain sequential or shuffled order becomes the loader's own order, so that ranks can share it and its state is
    small; other samplers are used unchanged. An iterable-style dataset is read in as many streams as the loader has
    workers.

    Raises TypeError if `loader` is not a DataLoader, or is of a class that overrides how it iterates.
    """
    from torch.utils.data import DataLoader

    if not isinstance(loader, DataLoader):
        raise TypeError(f"elastic() takes a torch.utils.data.DataLoader, not {type(loader).__name__}")
    if isinstance(loader, ElasticDataLoader):
        if changes:
            raise TypeError("the loader is elastic: make another one, or use resize() and set_epoch()")
        return loader
    for method in ("__iter__", "_get_iterator", "__len__"):
        if getattr(type(loader), method) is not getattr(DataLoader, method):
            raise TypeError(
                f"{type(loader).__name__} has a {method}() of its own, and what that does cannot be taken over: make "
                "an ElasticDataLoader of its dataset"
            )
    names = "dataset collate_fn pin_memory timeout worker_init_fn generator pin_memory_device in_order num_workers"
    options = {name: getattr(loader, name) for name in names.split() if hasattr(loader, name)}
    if changes.get("num_workers", loader.num_workers) != 0:
        options["prefetch_factor"] = loader.prefetch_factor
        options["multiprocessing_context"] = loader.multiprocessing_context
        options["persistent_workers"] = loader.persistent_workers or None
    return ElasticDataLoader(**{**options, **_order_options(loader), **changes})


def _order_options(loader: DataLoader[Any]) -> dict[str, Any]:
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    dataset: object = loader.dataset
    batches = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if is_iterable_style(dataset):
        return {**batches, "streams": loader.num_workers}
    if batch_sampler is not None and (loader.batch_size is None or type(batch_sampler) is not BatchSampler):
        return {"batch_sampler": batch_sampler}
    if type(sampler) is SequentialSampler and sampler.data_source is dataset:
        return batches
    if (
        type(sampler) is RandomSampler
        and sampler.data_source is dataset
        and not sampler.replacement
        and sampler._num_samples is None
        and sampler.generator is loader.generator
    ):
        return {**batches, "shuffle": True}
    return {**batches, "sampler": sampler}
