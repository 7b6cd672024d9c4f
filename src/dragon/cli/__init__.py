"""The subcommands of `dragon`, one module each, and the other commands of the package."""
