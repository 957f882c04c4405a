"""The statistics and rules of the gate, which promotes or discards a candidate, or does neither."""
