"""Judges of natural-language assertions."""
