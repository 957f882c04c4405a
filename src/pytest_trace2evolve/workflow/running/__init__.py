"""During a run: who talks, how simulations are made, and what becomes of each trial."""
