"""Attacks on the evidence of a small project: real sessions and commands over an agent that passes by chance."""
