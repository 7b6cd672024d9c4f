"""What an agent measures of its node, and what programs tell it.

Guarantees
 - At level 0 nothing is measured, kept or imported.
 - Measuring happens beside the agent's loop. What fails or hangs is said once in the log; all else goes on.
 - The history is in the agent's memory and of fixed size: the newest points of the series that were last written to.
 - At the default second it takes less than 1 % of a core, however many processes and queues there are: only some
   of the processes are read each time, and only the first queues.
"""
