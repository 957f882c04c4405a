"""Synthetic cases at work: admission, pressure tests, freezing."""
