"""Launchers: the sources of the nodes of a run, and the front end that starts their agents."""
