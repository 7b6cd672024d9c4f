"""The processes of a running cluster: master, workers, application masters, submitter."""
