"""The site of the documents: `make docs`."""
