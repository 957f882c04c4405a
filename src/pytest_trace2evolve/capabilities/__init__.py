"""Which capabilities are missing: labels of traces, and the contrast of failures and successes."""
