"""Parts of a round: its cohort, the filter and the aggregation of updates, a retry, and scores."""
