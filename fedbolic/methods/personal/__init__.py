"""Methods whose clients keep a model, or a part of one, of their own; one file each."""
