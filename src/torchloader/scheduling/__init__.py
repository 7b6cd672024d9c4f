"""What happens to applications, and when: states, events, decisions. No process, no clock, no file but the log's."""
