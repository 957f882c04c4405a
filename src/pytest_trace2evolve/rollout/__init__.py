"""Rollouts: one agent, one user and one world, talking until the task is done or given up."""
