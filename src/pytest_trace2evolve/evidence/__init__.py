"""Evidence: results files, run folders, baselines and the scoreboard, written so that nothing is half there."""
