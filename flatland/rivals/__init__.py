"""Published methods that FlatLand is compared with."""
