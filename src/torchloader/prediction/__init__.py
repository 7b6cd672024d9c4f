"""How fast a job trains with how many loading workers."""
