"""Tests that put an agent under pressure: fixtures, what they need in each process, and frozen cases."""
