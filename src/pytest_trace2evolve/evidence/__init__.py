"""Evidence on disk: results files, run folders, baselines, the scoreboard; whole files or none."""
