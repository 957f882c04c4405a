"""Runs that lie in files: reading sides, scoring them again, comparing, listing and showing them."""
