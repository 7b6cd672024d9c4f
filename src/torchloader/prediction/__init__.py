"""Predicts how fast a job trains with how many loading workers."""
