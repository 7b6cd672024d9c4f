"""A data loader whose workers come and go while it is used, without a change of what it gives."""
