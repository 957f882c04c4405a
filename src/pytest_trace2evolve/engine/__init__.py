"""Turns jobs into simulations: scheduling, the conversation loop, budgets and resumption."""
