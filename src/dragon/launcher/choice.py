"""Chooses the launcher from the command line and the environment.

`--wlm` decides; else given hosts are used by ssh; else an allocation of several nodes is used; else `--nodes N` means N
simulated nodes; else the run is on this node only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dragon.launcher.base import Launcher


# Variables that a workload manager, a login or a runtime sets for one node or one process.
_PREFIXES = ("SLURM", "SRUN_", "PBS_", "PALS_", "PMI_", "PMIX_", "OMPI_", "KUBERNETES_", "SSH_", "XDG_", "_")
_NAMES = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "DISPLAY", "DRAGON_FRONT_END", "DRAGON_JOIN", "DRAGON_PROCESS", "DRAGON_RUN"),
        *("HIP_VISIBLE_DEVICES", "HOST", "HOSTNAME", "JOB_COMPLETION_INDEX", "NCPUS", "OLDPWD", "PWD"),
        *("ROCR_VISIBLE_DEVICES", "SHLVL", "TMPDIR", "ZE_AFFINITY_MASK"),
    }
)


def carried(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that processes on other nodes inherit from the user's environment. Variables that are not
    UTF-8 are left out, since messages are text."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NAMES and not name.startswith(_PREFIXES) and is_text(name + value)
    }


def is_text(word: str) -> bool:
    """Return whether a string can be sent: not if it contains undecodable bytes from the system."""
    return word.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in word)


WLMS = ("slurm", "pbs", "pbs+pals", "ssh", "k8s", "ray", "local", "drun")

# The commands of workload managers, for a hint if a user has forgotten to allocate nodes.
_MANAGERS = {"srun": "Slurm", "qsub": "PBS"}


class Wanted(NamedTuple):
    """The request for nodes from the command line.

    Attributes:
        cpus, gpus: what each simulated node claims; None for what this machine has.
        address: the address of a Ray cluster.
    """

    wlm: str = ""  # the requested launcher; "" to detect it
    nodes: int = 0  # the number of nodes; 0 for all
    idle: int = 0  # spare nodes, in addition to those
    hosts: Sequence[str] = ()  # the hosts that were given
    single: bool = False  # whether to run on this node only
    several: bool = False  # whether to use an allocation even if it has only one node
    cpus: int | None = None
    gpus: int | None = None
    ssh_options: Sequence[str] = ()  # additional options for ssh
    address: str = "auto"  # of a Ray cluster

    @property
    def size(self) -> int:
        """The number of nodes to request, including spare ones; 0 for all."""
        return self.nodes + self.idle if self.nodes else 0


def choose(wanted: Wanted, environment: Mapping[str, str] = os.environ) -> Launcher | None:
    """Return the launcher; None for this node only. Raises LaunchError if the request cannot be fulfilled."""
    if wanted.single:
        return None
    name = wanted.wlm or _implied(wanted, environment)
    if name in ("", "slurm"):
        _tell_of_components(environment)
    if not name:
        return None
    return _make(name, wanted, environment)


def _tell_of_components(environment: Mapping[str, str]) -> None:
    """Report which nodes of a heterogeneous Slurm job are used: the variables are those of its first component."""
    parts = environment.get("SLURM_HET_SIZE") or environment.get("SLURM_PACK_SIZE") or "1"
    if parts.isdecimal() and int(parts) > 1:
        used = environment.get("SLURM_JOB_NODELIST", "")
        print(
            f"dragon: a heterogeneous job of Slurm, of {parts} components: the nodes of its first one are used "
            f"({used}); give --hostlist for those of the others",
            file=sys.stderr,
        )


def _nodes_of_slurm(environment: Mapping[str, str]) -> int:
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        text = environment.get(name)
        if text and not text.isdecimal():
            from dragon.launcher.base import LaunchError

            raise LaunchError(
                f"{name} is {text!r}, which is not a number of nodes: unset it, or run on this node with -s"
            )
        if text:
            return int(text)
    return 0


def _implied(wanted: Wanted, environment: Mapping[str, str]) -> str:
    if wanted.hosts:
        return "ssh"
    rehearsal = wanted.cpus is not None or wanted.gpus is not None
    slurm = _nodes_of_slurm(environment)
    if not rehearsal and "SLURM_JOB_ID" in environment and (slurm > 1 or wanted.several):
        return "slurm"
    if not rehearsal and environment.get("PBS_NODEFILE"):
        from dragon.launcher.pbs import read_node_file
        from dragon.runtime.site_launcher import has_pals

        if len(set(read_node_file(environment))) > 1 or wanted.several:
            return "pbs+pals" if has_pals() else "pbs"
    if wanted.nodes > 1 or rehearsal:
        return "local"
    if wanted.several:
        from dragon.launcher.base import LaunchError

        raise LaunchError(
            "several nodes were requested, and there are none: give --nodes, --hostlist or --wlm, or use an allocation"
        )
    _tell_of_managers(environment)
    return ""


def _tell_of_managers(environment: Mapping[str, str]) -> None:
    if "SLURM_JOB_ID" in environment or "PBS_JOBID" in environment or not sys.stderr.isatty():
        return
    import shutil  # not imported where nodes were allocated

    for command, name in _MANAGERS.items():
        if shutil.which(command):
            print(
                f"dragon: {name} is installed here, but this is not in an allocation: using this node only",
                file=sys.stderr,
            )
            return


def _make(name: str, wanted: Wanted, environment: Mapping[str, str]) -> Launcher:
    from dragon.launcher.base import LaunchError

    if name == "slurm":
        from dragon.launcher.slurm import Slurm

        return Slurm(wanted.size, environment)
    if name in ("pbs", "pbs+pals"):
        from dragon.launcher import pbs

        return pbs.Pals(wanted.size, environment) if name == "pbs+pals" else pbs.Pbs(wanted.size, environment)
    if name in ("ssh", "drun"):
        if not wanted.hosts:
            raise LaunchError("no hosts are given: use --hostlist, --hostfile or --network-config")
        if wanted.size > len(wanted.hosts):
            raise LaunchError(f"{wanted.size} nodes were requested, and {len(wanted.hosts)} hosts given")
        from dragon.launcher.base import Ssh

        return Ssh(wanted.hosts[: wanted.size or None], wanted.ssh_options)
    if name == "k8s":
        from dragon.launcher.k8s import K8s

        return K8s(environment)
    if name == "ray":
        from dragon.launcher.ray import Ray

        return Ray(wanted.size, wanted.address)
    if name == "local":
        from dragon.launcher.base import Simulated

        return Simulated(wanted.size or 1, wanted.cpus, wanted.gpus)
    raise LaunchError(f"there is no launcher {name!r}; there are {', '.join(WLMS)}")
