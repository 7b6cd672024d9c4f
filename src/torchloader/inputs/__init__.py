"""What users write: workloads, clusters, jobs."""
