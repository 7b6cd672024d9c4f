"""What a trainer and its loading workers did for a while, and how many workers that says are needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchloader.loader.effort import Effort

__all__ = ["Look"]

_LEAST = 1e-9  # seconds


@dataclass(frozen=True, slots=True)
class Look:
    """Some batches with the same number of workers.

    workers: that took batches. batches: that the trainer got. waited, computed: seconds of the trainer's, between them
    all. trainer_cpu: its CPU time in them. made, effort: batches that workers made meanwhile, and what these took.
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
        """How long it was."""
        return self.waited + self.computed

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / max(_LEAST, self.seconds)

    @property
    def waiting(self) -> float:
        """The fraction of its time in which the trainer waited."""
        return self.waited / max(_LEAST, self.seconds)

    @property
    def step(self) -> float:
        """Seconds that the trainer computes for a batch."""
        return self.computed / self.batches if self.batches else 0.0

    @property
    def service(self) -> float:
        """Seconds of one worker that a batch takes where a core is free."""
        return self.effort.alone / self.made if self.made else 0.0

    @property
    def cpu(self) -> float:
        """Seconds of a core that a batch takes of a worker."""
        return self.effort.cpu / self.made if self.made else 0.0

    @property
    def share(self) -> float:
        """The cores that one busy worker takes, where they are free: 1 where it computes, nearly 0 where it waits."""
        return self.cpu / self.service if self.service > 0 else 1.0

    @property
    def busy(self) -> float:
        """Workers that were busy at a time, also with waiting for a core: by Little's law the batches per second times
        the seconds that a worker had each."""
        return self.rate * self.effort.seconds / self.made if self.made else 0.0

    def demand(self, cores: float) -> float:
        """Workers that would be busy at a time, by the same law, if batches came as fast as they can be used, and each
        worker had a core when it needs one.

        Batches can be used no faster than the trainer computes, and made no faster than the cores allow on which
        workers and trainer compute (the bottleneck law): more workers than that bring nothing.
        """
        of_cores = (self.cpu + self.trainer_cpu / max(1, self.batches)) / cores
        return self.service / max(_LEAST, self.step, of_cores)
