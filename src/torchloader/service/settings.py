"""The settings of a cluster, from the options of `torchloader run`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from dragon.files import whole_file, write_bytes
from dragon.infrastructure.errors import DragonError
from torchloader.inputs.job import Job
from torchloader.prediction.curve import Curve

_SETTINGS, JOBS, LOG = "settings.json", "jobs.json", "events.jsonl"
PRELOAD = "TORCHLOADER_PRELOAD"  # an environment variable that is set if jobs need PyTorch


class SettingsError(DragonError, ValueError):
    """Raised for an invalid file of settings; says which and why."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings for the head, the master and the workers, kept as JSON in the run's folder."""

    folder: str  # the folder for the event log, the traces and the output of jobs
    began: float  # when the workload began, in Unix time
    policy: str = "proportional"  # the name of the policy that allocates workers
    mode: int = 3  # when they are reallocated, 1 to 3; see `Mode`
    order: str = "arrival"  # the name of the order in which applications get devices
    device: str = "cpu"  # "cpu" or "cuda"
    rehearse: bool = False  # whether nodes are simulated: host names of the workload then stand for any node
    cores: int = 0  # cores of each node for loading; 0 for all that it has
    iterations: int = 0  # the most iterations of each job; 0 for no limit
    options: tuple[str, ...] = ()  # command-line options for every job that trains a built-in network
    retries: int = 3  # how often a job is restarted after a failure that is not its own
    silence: float = 300.0  # seconds without a report after which a job is ended
    guesses: dict[str, Curve] = {}  # initial curves, by the names of jobs
    hold: bool = False  # whether the master continues after the last job, for more to be submitted
    anywhere: bool = False  # whether loading workers may run on other nodes than the devices that they load for

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / _SETTINGS
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except ValueError as error:
            raise SettingsError(f"{path}: {error}; the file was modified. Restore it, or use another folder") from None

    @staticmethod
    def log(folder: Path) -> Path:
        """Return the path of the event log of a run's folder. Raises FileNotFoundError if there is none."""
        if not (folder / LOG).is_file():
            raise FileNotFoundError(f"{folder} is not the folder of a run: it has no {LOG}")
        return folder / LOG

    @staticmethod
    def jobs(folder: Path) -> list[Job]:
        return msgspec.json.decode((folder / JOBS).read_bytes(), type=list[Job])

    def save(self) -> None:
        """Write the settings into the folder, atomically."""
        path = Path(self.folder) / _SETTINGS
        with whole_file(path) as new:
            write_bytes(new, msgspec.json.format(msgspec.json.encode(self)))

    @property
    def scheduler(self) -> str:
        """The name of the policy, and of the order if it is not that of arrival, as in simulations."""
        return self.policy if self.order == "arrival" else f"{self.policy}+{self.order}"

    @property
    def image_size(self) -> int:
        """The side of the images that torchloader's training program uses, in pixels."""
        words = list(self.options)
        return int(words[words.index("--image-size") + 1]) if "--image-size" in words else 32
