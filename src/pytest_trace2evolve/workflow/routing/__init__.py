"""The router's table, and how often the router is right."""
