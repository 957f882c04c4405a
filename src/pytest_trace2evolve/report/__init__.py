"""Reports: what a run and a comparison look like to people."""
