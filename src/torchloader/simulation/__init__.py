"""A discrete-event simulation of the scheduler."""
