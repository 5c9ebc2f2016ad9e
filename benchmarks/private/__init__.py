"""Cost of privacy of FlyNN's counts."""
