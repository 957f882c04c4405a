"""The built-in generators of scenarios, one module for each capability."""
