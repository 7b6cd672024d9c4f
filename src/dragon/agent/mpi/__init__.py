"""MPI jobs: how the ranks of a group find each other, over PMI-1 or PMIx."""
