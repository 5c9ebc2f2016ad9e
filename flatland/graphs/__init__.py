"""Networks on graphs and their federated training, of FlatLand and of its rivals."""
