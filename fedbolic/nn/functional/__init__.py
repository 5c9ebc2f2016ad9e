"""Functions of points in coordinates, and of features, on which layers are built."""
