"""Before a run: what was asked for is read, checked and settled."""
