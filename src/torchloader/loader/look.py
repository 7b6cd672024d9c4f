"""A measurement of a trainer and its loading workers, and the number of workers that it implies."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchloader.loader.effort import Effort

__all__ = ["Look"]

_LEAST = 1e-9  # seconds


@dataclass(frozen=True, slots=True)
class Look:
    """A measurement over some batches with a constant number of workers.

    Attributes:
        workers: workers that took batches.
        batches: batches that the trainer received.
        waited: seconds that the trainer waited for them.
        computed: seconds of the trainer between them.
        trainer_cpu: seconds of CPU time of the trainer meanwhile.
        made: batches that workers made meanwhile.
        effort: what these took the workers.
    """

    workers: int
    batches: int
    waited: float
    computed: float
    trainer_cpu: float = 0.0
    made: int = 0
    effort: Effort = field(default=Effort())

    @property
    def seconds(self) -> float:
        """The duration of the measurement in seconds."""
        return self.waited + self.computed

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / max(_LEAST, self.seconds)

    @property
    def waiting(self) -> float:
        """The fraction of its time in which the trainer waited, from 0 to 1."""
        return self.waited / max(_LEAST, self.seconds)

    @property
    def step(self) -> float:
        """Seconds that the trainer computes per batch."""
        return self.computed / self.batches if self.batches else 0.0

    @property
    def service(self) -> float:
        """Seconds of one worker per batch, if a core is free."""
        return self.effort.alone / self.made if self.made else 0.0

    @property
    def cpu(self) -> float:
        """Seconds of a worker's CPU time per batch."""
        return self.effort.cpu / self.made if self.made else 0.0

    @property
    def share(self) -> float:
        """The fraction of a core that one busy worker uses when cores are free: 1 if it computes, nearly 0 if
        it waits."""
        return self.cpu / self.service if self.service > 0 else 1.0

    @property
    def busy(self) -> float:
        """The average number of busy workers, including those that wait for a core: by Little's law, batches per second
        times a worker's seconds per batch."""
        return self.rate * self.effort.seconds / self.made if self.made else 0.0

    def demand(self, cores: float) -> float:
        """Return the average number of busy workers, by Little's law, if batches came as fast as they can be used and
        each worker had a core when needed.

        Batches are used no faster than the trainer computes, and made no faster than the cores allow on which workers
        and trainer compute (the bottleneck law): more workers than that bring nothing.
        """
        of_cores = (self.cpu + self.trainer_cpu / max(1, self.batches)) / cores
        return self.service / max(_LEAST, self.step, of_cores)
