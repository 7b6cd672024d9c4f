"""Queues, locks and other objects that processes of one node use on another, and the nodes that they are on."""
