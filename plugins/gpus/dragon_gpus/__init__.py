"""Telemetry of AMD's and Intel's GPUs for the Dragon runtime: drivers that agents find by their entry points."""
