"""Published schedulers, as policies and orders of torchloader, and the workloads on which their papers compare them."""
