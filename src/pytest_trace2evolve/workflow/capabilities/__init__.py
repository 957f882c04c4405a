"""From runs to the capabilities that are missing."""
