"""The `trace2evolve` command: each command parses, calls one library function and renders."""
