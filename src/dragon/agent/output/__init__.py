"""What processes write: read, labelled, and passed on to whoever is to have it."""
