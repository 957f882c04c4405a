"""The subcommands of `trace2evolve`, a file each: `add` declares one, and its function runs it."""
