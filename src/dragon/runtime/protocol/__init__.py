"""The requests that agents answer: one struct for each, which says where it is handled and what type the reply has.

A process sends a request to the agent of its node (`dragon.runtime.agent_client.ask`), which handles it, or forwards it
to the agent that the request's `place()` names. Each module has the requests of one area.
"""
