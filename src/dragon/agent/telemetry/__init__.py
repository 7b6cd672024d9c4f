"""What an agent measures of its node, and what programs tell it.

Guarantees
 - At level 0 nothing is measured, kept or imported.
 - Measuring happens beside the agent's loop. What fails or hangs is said once in the log; all else goes on.
 - The history is in the agent's memory and of fixed size: the newest points of the series that were last written to.
 - Whatever there is to measure, at the default second it takes less than 1 % of a core: of many processes only some are
   read each time, of many queues only the first are.
"""
