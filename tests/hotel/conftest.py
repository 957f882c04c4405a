"""The template's own tests belong to its copies."""

collect_ignore = ["project"]
