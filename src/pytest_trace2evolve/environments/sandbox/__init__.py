"""Runs generated modules in a process without network, files and credentials."""
