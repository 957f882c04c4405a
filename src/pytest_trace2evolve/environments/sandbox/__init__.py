"""Runs generated modules in a process that has no access to the network, files or credentials."""
