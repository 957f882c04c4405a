"""Frozen records that rooms exchange and that files hold, and the protocols between rooms."""
