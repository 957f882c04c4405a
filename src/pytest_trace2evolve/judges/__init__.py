"""Model judges: natural-language assertions, capabilities, environments."""
