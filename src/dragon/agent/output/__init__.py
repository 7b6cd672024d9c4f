"""The output of processes: it is read, labelled, and forwarded."""
