"""Process groups, each followed by one node wherever its members run."""
