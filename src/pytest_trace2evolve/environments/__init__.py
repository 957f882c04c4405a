"""Capability environments: scenarios played on a world, graded by what was done, admitted and calibrated."""
