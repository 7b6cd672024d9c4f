"""MPI jobs: how the ranks of a group learn of each other, over PMI-1 or PMIx."""
