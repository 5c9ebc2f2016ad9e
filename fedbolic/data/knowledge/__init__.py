"""Knowledge graphs: named triples, and their partitioning among clients."""
