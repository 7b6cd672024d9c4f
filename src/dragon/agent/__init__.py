"""The node agent: it starts and reaps the node's processes, supervises groups, forwards output, and ends the run.

Guarantees

 - The run ends when its owner ends, however that happens: every process below the zygote is stopped, then killed,
   and the run's folder is removed.
 - The agent and the zygote monitor each other. If either is killed, the other one cleans up.
 - What a killed process held in shared memory is freed when its end is noticed.
"""
