# Train with five real clients, each a process that reads a table of its own.
mkdir nodes
for city in bath ely leeds wells york; do cat > nodes/$city.yaml <<END
data:
  class_path: fedbolic.data.Partitioned
  init_args:
    dataset: {class_path: fedbolic.data.TableFile, init_args: {path: $PWD/$city.csv, target: outcome}}
    partition: {class_path: fedbolic.data.IID, init_args: {num_clients: 1}}
END
done
fedbolic flower --method FedAvg --method.rounds 2 --deployment.nodes nodes --name cities
fedbolic report runs/cities
