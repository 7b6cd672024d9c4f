"""Who gets how many loading workers."""
