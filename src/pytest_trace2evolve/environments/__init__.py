"""Capability environments: scenarios, rewards, admission, calibration and synthesis."""
