"""The part of the front end's environment that is valid on every node of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Variables that a workload manager, a login or a runtime sets for one node or one process.
_PREFIXES = ("SLURM", "SRUN_", "PBS_", "PALS_", "PMI_", "PMIX_", "OMPI_", "KUBERNETES_", "SSH_", "XDG_", "_")
_NAMES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "DISPLAY",
        "DRAGON_FRONT_END",
        "DRAGON_JOIN",
        "DRAGON_PROCESS",
        "DRAGON_RUN",
        "HIP_VISIBLE_DEVICES",
        "HOST",
        "HOSTNAME",
        "JOB_COMPLETION_INDEX",
        "NCPUS",
        "OLDPWD",
        "PWD",
        "ROCR_VISIBLE_DEVICES",
        "SHLVL",
        "TMPDIR",
        "ZE_AFFINITY_MASK",
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
