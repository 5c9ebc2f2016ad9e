"""Updates, which leave clients, their bounds, and channels that change them."""
