"""Published files: their download, checksums and contents."""
