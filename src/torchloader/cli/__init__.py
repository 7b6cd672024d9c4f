"""The subcommands of `torchloader`, one module each."""
