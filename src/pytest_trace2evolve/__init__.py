"""Evaluate tool-using agents as a pytest suite and gate every change to them."""

__version__ = "0.1.0"
