"""The statistics and rules by which a candidate is promoted, discarded or neither. Pure."""
