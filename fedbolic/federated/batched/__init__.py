"""Many clients in one tensor: their batches, steps, results and scores."""
