"""Examples, clients, data sets, their sources and partitions."""
