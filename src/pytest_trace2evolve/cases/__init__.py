"""Synthetic tasks with scripted customers: families, content, admission."""
