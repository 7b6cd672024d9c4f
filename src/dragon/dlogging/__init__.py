"""Logs of programs under dragonhpc's names. They use Python's logging."""
