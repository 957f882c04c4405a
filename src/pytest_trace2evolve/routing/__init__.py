"""Routing: which adapter a task is given to, decided by log-probabilities of single letters. Pure."""
