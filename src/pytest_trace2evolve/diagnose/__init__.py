"""Finds the capabilities that the failures of a run lack, by contrast with its successes."""
