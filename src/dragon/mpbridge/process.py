"""The classes of processes under the names that programs know from dragonhpc."""

from dragon.mpbridge.context import DragonProcess
from dragon.mpbridge.popen import Popen as DragonPopen

__all__ = ["DragonPopen", "DragonProcess"]
