"""ToolSandbox: its export, its tools in a process of their own, and its scenarios as a world."""
