"""Experiments: ways to spend equal rollouts, compared on whole tasks of held-out content."""
