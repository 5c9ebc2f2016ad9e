"""The same YAML between real machines: a Flower app, and its processes on this one."""
