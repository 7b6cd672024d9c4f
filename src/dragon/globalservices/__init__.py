"""Look-ups and control by id: processes and nodes of the run."""
