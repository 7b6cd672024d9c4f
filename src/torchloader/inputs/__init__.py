"""Readers of the files that users write: workloads, clusters, jobs."""
