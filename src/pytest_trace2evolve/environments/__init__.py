"""Environments of capabilities: scenarios that are played and graded, and where code of a model may run."""
