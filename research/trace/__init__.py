"""Compares ways to spend equal rollouts on training the embedded model."""
