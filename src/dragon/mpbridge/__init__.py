"""multiprocessing on top of the runtime: the start method "dragon"."""
