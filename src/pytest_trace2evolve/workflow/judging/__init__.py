"""After a run: verdicts, the ledger, what is kept, and what is promoted."""
