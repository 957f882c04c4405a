"""Files that hold evidence: results, baselines, draws, journals, the ledger and the scoreboard."""
