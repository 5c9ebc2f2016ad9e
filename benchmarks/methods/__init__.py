"""Every method, in its quick configuration."""
