"""What a run shows over HTTP: its metrics for Prometheus, and its dashboard."""
