"""Immutable records that packages exchange and files store, and the protocols between packages."""
