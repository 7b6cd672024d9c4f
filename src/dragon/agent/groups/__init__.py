"""Process groups, followed by one node wherever their members run."""
