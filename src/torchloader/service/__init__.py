"""The processes of a torchloader cluster: head, master, workers, application masters, submitter."""
