"""Logs of programs under the names that they know from dragonhpc. They are those of Python's logging."""
