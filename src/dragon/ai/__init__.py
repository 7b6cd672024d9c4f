"""Training over the run."""
