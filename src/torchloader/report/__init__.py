"""Figures, tables and pages of runs."""
