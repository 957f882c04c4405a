"""Turns the failures of a run into candidates, and passes them through the gate."""
