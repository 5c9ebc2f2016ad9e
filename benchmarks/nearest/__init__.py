"""The comparison of the FlyNN paper."""
