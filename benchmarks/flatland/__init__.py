"""FlatLand's tables, its protocol and its partition."""
