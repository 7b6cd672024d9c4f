"""Connections between agents, and between an agent and the front end: links, their bulk lanes, and responses."""
