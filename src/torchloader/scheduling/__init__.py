"""The scheduler: the states and events of applications, and decisions. Starts no process and reads no clock; only the
log writes a file."""
