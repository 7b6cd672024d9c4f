"""What an agent measures of its node, and what programs report to it.

Guarantees

 - At level 0 nothing is measured, kept or imported.
 - Measuring happens outside the agent's event loop. A source that fails or hangs is logged once; the others go on.
 - The history is in the agent's memory and has a fixed size: the newest points of the most recently written series.
 - At the default interval of 1 s it takes less than 1 % of a core, however many processes and queues there are: only
   some of the processes, and only the first queues, are read each time.
"""
