"""The project's modules belong to its copies."""

collect_ignore = ["project"]
