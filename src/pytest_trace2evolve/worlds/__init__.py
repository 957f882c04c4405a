"""The domains that agents act in: τ²'s, ToolSandbox's, the support world, and worlds of users (`plain`)."""
