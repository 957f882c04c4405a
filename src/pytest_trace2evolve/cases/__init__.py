"""Synthetic pressure cases: generated customers, stores and requests, with gold actions from an expert."""
