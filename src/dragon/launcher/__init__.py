"""Where nodes come from. On one machine: this one."""
