"""SCAFFOLD as a method of another project: a control variate at the server and at every client."""

from dataclasses import dataclass

from fedbolic.core import tree
from fedbolic.federated import ClassifierMethod


@dataclass(frozen=True)
class Scaffold(ClassifierMethod):
    """Federated averaging with control variates, which correct the drift of local steps."""

    weights = "uniform"
    counts_steps = True
    payload_like = ClassifierMethod.payload_like | {"variate": "parameters"}

    def init(self, meta, rng):
        state = super().init(meta, rng)
        return {**state, "variate": tree.zeros_like(state["parameters"]), "all": meta.num_clients}

    def start(self, message, client, client_state):
        local, context = super().start(message, client, client_state)
        own = client_state.get("own") or tree.zeros_like(message["parameters"])
        shared = {**context["shared"], "variate": message["variate"]}
        return local, {"shared": shared, "own": {"variate": own}}

    def step(self, local, gradients, context):
        drift = tree.subtract(context["shared"]["variate"], context["own"]["variate"])
        return super().step(local, tree.add(gradients, drift), context)

    def outcome(self, local, context):
        payload, _ = super().outcome(local, context)
        steps, own = local["num_steps"], context["own"]["variate"]
        mean = tree.scale(payload["delta"], -1 / (steps.clamp(min=1) * self.lr))  # of all gradients
        moved = tree.subtract(mean, context["shared"]["variate"])
        moved = tree.scale(moved, steps > 0)  # a client without examples keeps its variate
        return {**payload, "variate": moved}, {"own": tree.add(own, moved)}

    def server_update(self, server_state, total):
        share = len(total.clients) / server_state["all"]
        moved = tree.scale(total.payload["variate"], share)
        state = super().server_update(server_state, total)
        return {**state, "variate": tree.add(server_state["variate"], moved)}
