"""Networks with points next to the same networks without."""
