"""How a cluster is run: what `torchloader run` was told."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from dragon.files import whole_file, write_bytes
from torchloader.inputs.job import Job
from torchloader.prediction.curve import Curve

__all__ = ["JOBS", "LOG", "PRELOAD", "Settings", "SettingsError"]

_SETTINGS, JOBS, LOG = "settings.json", "jobs.json", "events.jsonl"
PRELOAD = "TORCHLOADER_PRELOAD"  # a variable that is set where jobs will need PyTorch


class SettingsError(ValueError):
    """A file of settings is not what it must be; says which and why."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the head, the master and the workers need to know. Kept as JSON in the run's folder.

    Args:
        folder: for the event log, the traces and what the jobs write.
        began: when the workload began, in Unix time.
        policy: how workers are allocated, by name. mode: when they are reallocated, 1 to 3.
        order: which applications hold devices first, by name.
        device: "cpu" or "cuda".
        rehearse: whether nodes are simulated: host names of the workload then stand for any of them.
        cores: for loading, of each node; 0 for all that it has.
        iterations: at most so many of each job; 0 for as many as it asks for.
        options: for every job that trains one of the known architectures, as on the command line.
        retries: how often a job is started again after something that was not its own mistake.
        silence: seconds without a sign of life after which a job is ended.
        guesses: curves to begin with, by the names of jobs.
        hold: whether the master goes on after the last job, for more to be submitted.
        anywhere: whether loading workers may be on other nodes than the devices that they load for.
    """

    folder: str
    began: float
    policy: str = "proportional"
    mode: int = 3
    order: str = "arrival"
    device: str = "cpu"
    rehearse: bool = False
    cores: int = 0
    iterations: int = 0
    options: tuple[str, ...] = ()
    retries: int = 3
    silence: float = 300.0
    guesses: dict[str, Curve] = {}
    hold: bool = False
    anywhere: bool = False

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Those of a run's folder. Raises FileNotFoundError where there are none, SettingsError for what cannot be."""
        path = folder / _SETTINGS
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise SettingsError(
                f"{path}: {error}; the file was changed. Restore it, or begin with another folder"
            ) from None

    @staticmethod
    def log(folder: Path) -> Path:
        """The event log of a run's folder. Raises FileNotFoundError where it is no run's."""
        if not (folder / LOG).is_file():
            raise FileNotFoundError(f"{folder} is not the folder of a run: it has no {LOG}")
        return folder / LOG

    @staticmethod
    def jobs(folder: Path) -> list[Job]:
        """The jobs of the workload that a run's folder is of."""
        return msgspec.json.decode((folder / JOBS).read_bytes(), type=list[Job])

    def save(self) -> None:
        """Write them into the folder, all at once."""
        path = Path(self.folder) / _SETTINGS
        with whole_file(path) as new:
            write_bytes(new, msgspec.json.format(msgspec.json.encode(self)))

    @property
    def scheduler(self) -> str:
        """The name of the policy, and of the order where that is not the order of arrival, as simulations have it."""
        return self.policy if self.order == "arrival" else f"{self.policy}+{self.order}"

    @property
    def image_size(self) -> int:
        """Pixels a side, of what our program trains on."""
        words = list(self.options)
        return int(words[words.index("--image-size") + 1]) if "--image-size" in words else 32
