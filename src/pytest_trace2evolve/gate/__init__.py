"""The reliability gate: two sides' evidence in, a verdict out."""
