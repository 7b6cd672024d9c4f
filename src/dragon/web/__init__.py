"""What a run tells over HTTP: its metrics to Prometheus, and a page to look at."""
