"""Attacks on the evidence of a small project: real sessions and commands whose agent passes by chance."""
