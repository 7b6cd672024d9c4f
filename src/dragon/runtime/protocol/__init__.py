"""What is asked of agents: one struct for each request, which says where it is done and what answers it.

A process asks the agent of its node (`dragon.runtime.agent_client.ask`). That one does it, or has the agent do it that
the request's `place()` names. `decoding` knows all requests; every other module here those of one wing.
"""
