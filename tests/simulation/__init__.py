"""A deterministic simulation of the control plane; see simulation.runs and docs/development.md."""
