"""Policies that decide how many loading workers each job gets."""
