"""Times of this library over those of others."""
