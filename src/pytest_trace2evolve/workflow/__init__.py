"""Workflow: puts the rooms below together, from a plan to simulations, evidence and a verdict."""
