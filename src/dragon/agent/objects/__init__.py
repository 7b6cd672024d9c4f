"""Queues, locks and other objects of one node that processes on other nodes use."""
