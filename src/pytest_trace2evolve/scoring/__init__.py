"""Scores a simulation by τ²-bench's rules, and checks the invariants of a world."""
