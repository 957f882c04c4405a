"""Files that hold evidence: results, baselines, draws, journals and the ledger."""
