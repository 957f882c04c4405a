"""The domains that agents act in: τ²'s from two packages, and the support world."""
