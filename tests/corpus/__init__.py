"""Hostile files, generated from seeds, and the process that runs all of them through readers and commands."""
