"""Environments of capabilities: where they come from, and where code that a model wrote may run."""
