"""Common ground of all rooms: types, trees of tensors, random streams, checks, files."""
