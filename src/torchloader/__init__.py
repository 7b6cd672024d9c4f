"""More training from the same cores: data-loading workers move to the jobs that wait for data."""
