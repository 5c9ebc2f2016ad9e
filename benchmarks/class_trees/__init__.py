"""Classes that form a tree, and retrieval."""
