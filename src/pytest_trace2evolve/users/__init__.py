"""Simulated users: a model, a scripted customer, and the users of the reference agents."""
