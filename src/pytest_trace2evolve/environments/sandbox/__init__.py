"""The sandbox of generated environments: rules for the source, a locked process, and who talks to it."""
