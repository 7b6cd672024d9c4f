"""Tasks that depend on each other, and executors on which other libraries run theirs."""
