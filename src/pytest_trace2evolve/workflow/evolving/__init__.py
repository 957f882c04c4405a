"""From the failures of a run to adapters that went through the gate, a stage after the other."""
