"""Scoring: τ²'s rules, from a trace, its task and a world to a score and to metrics."""
