"""A DataLoader whose number of workers can change while it is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import util as mp_util
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from dragon.node_files import NodeFile
from torchloader.loader.attributes import Attributes
from torchloader.loader.base import RankSampler, samplers_of
from torchloader.loader.crew import Crew
from torchloader.loader.exchange import joined
from torchloader.loader.iteration import Iteration, StreamIteration, standing_of, tell
from torchloader.loader.making import Maker, StreamMaker
from torchloader.loader.options import (
    WorkerPolicy,
    check_dataset,
    check_number,
    check_options,
    check_stream_options,
    check_timeout,
    check_worker_options,
    is_iterable_style,
    nodes_for,
)
from torchloader.loader.order import (
    BatchSamplerOrder,
    SampleOrder,
    SamplerOrder,
    distributed_place,
    place_of,
    rank_of,
    restore,
    seed_of,
    state_of,
    warn_of_ranks,
)
from torchloader.loader.streams import StreamOrder
from torchloader.loader.tuner import by_environment, tuner_of


@dataclass(frozen=True, slots=True)
class Counters:
    """What a loader has done since it was made.

    Attributes:
        batches: batches given to the trainer.
        samples: samples given to the trainer.
        waited: seconds in which the trainer wanted a batch and none was ready.
        computed: seconds between batches in which the trainer did not wait.
        made: samples that workers have made.
        service: average seconds of a worker's time per sample.
        depth: batches that are ready now.
        workers: workers that take batches now.
        replaced: workers that died.
        shared: batches that workers of other loaders have made (`shared_as`).
    """

    batches: int
    samples: int
    waited: float
    computed: float
    made: int
    service: float
    depth: int
    workers: int
    replaced: int
    shared: int = 0


_PREFETCH = 2

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from typing_extensions import TypeVar

    Batch = TypeVar("Batch", default=Any)
else:
    from typing import TypeVar

    Batch = TypeVar("Batch")


class ElasticDataLoader(Attributes, Generic[Batch]):
    """Batches of a dataset, made by a number of worker processes that can change at any time.

    Where PyTorch is installed this is a torch.utils.data.DataLoader. It takes the same arguments, and more:

    Args:
        num_workers: the number of loading workers at first. 0 loads in the trainer. "auto" finds the smallest number
            with which the trainer hardly waits, within the cores of the node, which all such loaders share; `tuning`
            shows the result.
        max_workers: the largest number that "auto" may choose; by default eight for each core that this process may
            use.
        multiprocessing_context: how workers start; by default with the start method of multiprocessing, as in PyTorch.
            "fork" forks them from the trainer, with all that it has in memory. With any other method they are new
            processes, to which the dataset is sent.
        persistent_workers: whether workers stay from one epoch to the next. By default new processes do, and get the
            dataset again if it has changed; forked ones do not, as they keep the dataset of their fork.
        seed: with the epoch, determines order and content. By default that of `generator`, else PyTorch's; with several
            ranks 0, as all must have the same.
        rank, world_size: the rank of this trainer, and the number of trainers that share each epoch. `batch_size` is
            per rank. world_size=1 gives every rank all samples where torch.distributed is initialized.
        streams: the number of parts in which an iterable-style dataset is read, which get_worker_info() returns as
            num_workers. By default the number of workers at first. Workers beyond the number of streams are idle.
        workers_on: the name of a node, or several, over which the workers are spread in turn; by default the trainer's
            node. `dragon.native.machine.System().hostname_policies()` has the names of the run's nodes.
        snapshot_every_n_steps: the number of batches of a stream between two calls of state_dict() of the dataset or
            its iterator.
        nice: by how much the priority of the workers is below the trainer's, from 0 to 19. By default 0, and 10 in jobs
            of torchloader: where cores are scarce the trainer then has priority, and so has every other program.
        in_order: False gives batches as soon as they are ready, so that slow ones do not delay others. The batches are
            the same; those of one stream stay in order.
        shared_as: a name that loaders of several programs on a node use if they read the same data: each batch is made
            once for all of them. Has no effect for workers on other nodes and without workers.

    The batches are the same, bit by bit, with any number of workers, however often it changes and whichever of them
    die: before each batch the random generators of Python, NumPy and PyTorch are seeded from (seed, epoch, index).
    Each iteration is the next epoch unless set_epoch() chooses another. With several ranks an iteration counts once it
    has given its last batch, so a rank that only looks at one batch stays at the epoch of the others. All workers of an
    epoch have the dataset as it was when its iterator was made; forked workers that stay keep the dataset of the first
    epoch.

    Batches of an iterable-style dataset come from its streams in turn, as from the workers of PyTorch's DataLoader; the
    generators are seeded from (seed, epoch, stream, batch). A stream moves to another worker by its state, or is read
    again from its beginning if it has none.

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
        multiprocessing_context: Any = None,
        generator: Any = None,
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
        before = vars(self).keys() - {"_DataLoader__initialized"}  # what a subclass has set
        self._DataLoader__initialized = False
        # An iterable-style dataset may share its samples among ranks itself.
        is_streaming = is_iterable_style(dataset)
        if num_workers != "auto":
            num_workers, streams = by_environment(num_workers, streams, is_streaming)
        is_placed = rank is not None or world_size is not None
        self._is_unaware = not (is_streaming or is_placed or sampler is not None or batch_sampler is not None)
        rank, world_size = place_of(rank, world_size)
        check_dataset(dataset, sampler is not None or batch_sampler is not None)
        check_options(
            batch_size,
            bool(shuffle),
            sampler,
            batch_sampler,
            drop_last,
            max_workers,
            seed,
            generator,
            world_size,
        )
        chosen = {"shuffle": shuffle, "sampler": sampler, "batch_sampler": batch_sampler}
        check_stream_options(is_streaming, streams, snapshot_every_n_steps, num_workers, chosen)
        check_timeout(timeout)
        check_worker_options(num_workers, prefetch_factor, persistent_workers, multiprocessing_context)
        self.dataset, self.drop_last = dataset, drop_last
        self.batch_size = None if batch_sampler is not None else batch_size
        self.generator, self.in_order = generator, in_order
        self.pin_memory, self.pin_memory_device, self.shared_as = pin_memory, pin_memory_device, shared_as
        self._context, self._workers_on = multiprocessing_context, workers_on
        self._persistent_workers, self._max_workers = persistent_workers, max_workers
        self._given_seed, self._given_samplers, self._place = seed, (sampler, batch_sampler), (rank, world_size)
        self._seed_is_given = seed is not None or generator is not None
        seed = seed_of(seed, generator, world_size)
        self._own_sampler: Any = sampler if batch_sampler is None else batch_sampler
        streams = int(num_workers if streams is None else streams) if is_streaming else None
        batch, samplers, place = (batch_size, bool(drop_last)), self._given_samplers, (rank, world_size)
        self._order: AnyOrder = order_of(dataset, seed, batch, samplers, bool(shuffle), streams, place)
        sources = generator, self._given_seed
        self.sampler, self.batch_sampler = samplers_of(
            dataset, self._order, sampler, batch_sampler, (self.batch_size, drop_last), sources, self.set_epoch
        )
        self._deciding = self._index_sampler
        functions = collate_fn, worker_init_fn
        self._maker = _maker_of(self._order, dataset, functions, batch, snapshot_every_n_steps)
        file, self._maker.membership = joined(shared_as, self._maker.is_map_style)
        # Workers of other nodes are new processes, whatever the start method is.
        self._policy = WorkerPolicy("dragon" if workers_on else multiprocessing_context, persistent_workers, nice)
        nodes, at_first = nodes_for(workers_on, multiprocessing_context), 1 if num_workers == "auto" else num_workers
        self._crew = Crew(self._maker, prefetch_factor or _PREFETCH, at_first, timeout, self._policy, nodes)
        self._tuner = tuner_of(max_workers, streams, nodes) if num_workers == "auto" else None
        # Which does nothing in a process that is forked from the trainer: the workers are not its own.
        self._finalizer = mp_util.Finalize(self, _close, (self._crew, file), exitpriority=15)
        self._next_epoch = self._epoch = 0
        self._position: Any = 0  # Gaps where batches overtake each other; a Place in the streams of an iterable dataset
        self._sampler_state: dict[str, Any] | None = None  # when the epoch under way began
        self._digest = 0
        self._resumed: tuple[Any, int | None] = 0, None  # a position and the digest of what comes before it
        # Choices of the next epoch so far, how often it has begun before, and its batches given at last.
        self._choices = self._begun = self._taken = 0
        self._given = [0, 0, 0.0, 0.0]  # the first four Counters
        if world_size > 1:
            self._is_accelerate_prepared = True  # Accelerate would share this rank's samples once more
        self._reflect()
        self._DataLoader__initialized = True
        self._known: set[str] = vars(self).keys() - before

    def __class_getitem__(cls, batch: Any) -> GenericAlias:
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

    def _warn_of_ranks(self) -> None:
        self._is_unaware = self._is_unaware and not warn_of_ranks()

    def __len__(self) -> int:
        self._take_over_sampler()
        return len(self._order)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        self._warn_of_ranks()
        iteration: Iterator[Batch] = self._get_iterator()
        return iteration

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def _take_over_sampler(self) -> None:
        """Let the sampler or batch sampler decide the order that a subclass has set in place of the loader's own."""
        sampler, batched = self._index_sampler, self.batch_sampler is not None
        if sampler is not self._deciding and not isinstance(self._order, StreamOrder):
            self._deciding = self._own_sampler = sampler
            self._given_samplers = (None, sampler) if batched else (sampler, None)
            self._order = order_of(self.dataset, self.seed, (None, False), self._given_samplers, False, None, (0, 1))

    def _get_iterator(self) -> Any:  # which such subclasses call, as that of PyTorch's
        self._take_over_sampler()
        self._epoch, (self._position, before) = self._next_epoch, self._resumed
        self._sampler_state = self._state_of_sampler()
        self._digest = before or 0
        iteration: Iteration
        if isinstance(self._order, StreamOrder):
            iteration = StreamIteration(self, self._epoch, self._position or self._order.beginning())
        else:
            iteration = Iteration(self, self._epoch, self._position, before)
        if self.world_size == 1:
            self._go_to(self._epoch + 1)
        else:
            self._warn_of_repetition()
            self._begun, self._taken = self._begun + 1, 0
        iteration.begin()
        return iteration

    def _go_to(self, epoch: int, resumed: tuple[Any, int | None] = (0, None)) -> None:
        self._next_epoch, self._resumed, self._begun, self._taken = epoch, resumed, 0, 0
        self._choices += 1
        if isinstance(self.sampler, RankSampler) and self.world_size > 1:
            self.sampler.epoch = epoch

    def _note_last(self, epoch: int, choices: int) -> None:
        """Go on to the next epoch when all batches of one are given, unless the program has chosen another
        meanwhile."""
        if self._choices == choices:
            self._go_to(epoch + 1)

    def _warn_of_repetition(self) -> None:
        if self._taken > 1 or self._begun > 1:
            warnings.warn(
                f"epoch {self._next_epoch} begins once more with its first batches, since its last iteration was left "
                "before the end: with several ranks only whole epochs count. Call set_epoch() to go on to another",
                stacklevel=4,
            )

    # ---- what it has done

    @property
    def counters(self) -> Counters:
        """What the loader has done so far."""
        tally, (batches, samples, waited, computed) = self._crew.tally, self._given
        return Counters(
            int(batches),
            int(samples),
            waited,
            computed,
            tally.samples,
            tally.effort.seconds / max(1, tally.samples),
            self._crew.depth,
            self._crew.ready,
            tally.died,
            tally.shared,
        )

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
        state: dict[str, Any] = {"version": 1, "seed": self.seed, "epoch": self._epoch, **self._told_place()}
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
        position = self._place_of(state)
        if state["seed"] != self.seed and self._seed_is_given:
            raise ValueError(f"the state is of seed {state['seed']}, this loader has {self.seed}: pass seed=…")
        before = self._restore_sampler(state) if self._own_sampler is not None and "sampler" in state else None
        self._order.seed = self._maker.seed = int(state["seed"])
        self._epoch, self._position = int(state["epoch"]), position
        self._go_to(self._epoch, (self._position, before))

    def _told_place(self) -> dict[str, Any]:
        position, order = self._position, self._order
        if isinstance(order, StreamOrder):
            return {"position": order.tell(position) if position else 0}
        return tell(position, order.whole, self._own_place())

    def _own_place(self) -> tuple[int, int]:
        return self._place if self.world_size > 1 else distributed_place()

    def _place_of(self, state: dict[str, Any]) -> Any:
        told = state["position"]
        if isinstance(told, dict) != isinstance(self._order, StreamOrder) and told != 0:
            raise ValueError(
                "the state is of a loader of another style of dataset: a map-style one has a number as its position, "
                "an iterable-style one its streams"
            )
        if isinstance(self._order, StreamOrder):
            return self._order.place(told) if told != 0 else 0
        return standing_of(state, self._order.whole, self._own_place())

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

    def _note_position(self, epoch: int, position: Any, digest: int) -> None:
        # Not one by one: PyTorch's loader and this one look at each attribute that is set.
        vars(self).update(_epoch=epoch, _position=position, _digest=digest, _taken=self._taken + 1)

    def _note_end(self, epoch: int) -> None:
        self._epoch, self._position, self._sampler_state, self._digest = epoch + 1, 0, None, 0


def _close(crew: Crew, file: NodeFile | None) -> None:
    crew.close()
    if file is not None:
        file.close()


AnyOrder = SampleOrder | SamplerOrder | BatchSamplerOrder | StreamOrder


def order_of(
    dataset: Any,
    seed: int,
    batch: tuple[int | None, bool],
    samplers: tuple[Iterable[Any] | None, Iterable[Any] | None],
    shuffle: bool,
    streams: int | None,
    place: tuple[int, int],
) -> AnyOrder:
    """Return the order of the batches. `batch` is (size, whether a smaller last one is dropped), `place` (rank, world
    size).

    `streams` is None for a map-style dataset.
    """
    sampler, batch_sampler = samplers
    if streams is not None:
        return StreamOrder(dataset, seed, *batch, streams, *place)
    if batch_sampler is not None:
        return BatchSamplerOrder(batch_sampler, seed)
    if sampler is not None:
        return SamplerOrder(sampler, seed, *batch)
    len(dataset)  # where it raises it does so here
    return SampleOrder(dataset, shuffle, seed, *batch, *place)


def _maker_of(
    order: AnyOrder,
    dataset: Any,
    functions: tuple[Callable[[Any], Any] | None, Callable[[int], None] | None],
    batch: tuple[int | None, bool],
    snapshot_every: int,
) -> Maker:
    if isinstance(order, StreamOrder):
        return StreamMaker(dataset, *functions, *batch, order.seed, snapshot_every)
    return Maker(dataset, *functions, isinstance(order, BatchSamplerOrder) or batch[0] is not None, order.seed)


def elastic(loader: DataLoader[Any], **changes: Any) -> ElasticDataLoader:
    """Make an ElasticDataLoader from the settings of a DataLoader of PyTorch.

    `changes` are options of ElasticDataLoader that replace those settings, such as num_workers="auto", or rank and
    world_size.

    A plain sequential or shuffled order becomes the loader's own order, so that ranks can share it and its state is
    small; other samplers are used unchanged. Workers start with the start method of the loader. They stay from one
    epoch to the next, as with ElasticDataLoader, unless `changes` has persistent_workers. The given loader and its
    iterators are not changed.

    An iterable-style dataset is read in as many streams as the loader has workers.

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
    return ElasticDataLoader(**{**options, **_order_of(loader), **changes})


def _order_of(loader: DataLoader[Any]) -> dict[str, Any]:
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    dataset: Any = loader.dataset
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
