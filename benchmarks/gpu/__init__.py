"""The toolkit on a GPU, part by part."""
