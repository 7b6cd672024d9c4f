"""The website of the documents, which `make docs` builds."""
