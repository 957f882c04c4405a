"""Plans, runs and judges evaluations, and implements the commands that read stored runs."""
