"""From the failures of a run to candidates that go through the gate."""
