# Train with five real clients, each in a process of its own with its data and its memory.
fedbolic flower --config fedavg/quick --data.partition.num_clients 5 --method.rounds 2
fedbolic report runs/fedavg_quick
