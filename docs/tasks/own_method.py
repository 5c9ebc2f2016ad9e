"""Write a federated method, FedProx, and train it."""

from dataclasses import dataclass

import fedbolic as fb


@dataclass(frozen=True)
class FedProx(fb.federated.ClassifierMethod):
    proximal: float = 0.01

    def step(self, local, gradients, context):
        start, here = context["shared"]["global_parameters"], local["parameters"]
        pulled = {n: g + self.proximal * (here[n] - start[n]) for n, g in gradients.items()}
        return super().step(local, pulled, context)


data = fb.data.Partitioned(fb.data.Digits(), fb.data.IID(5))
print(fb.report.report(fb.run.run(FedProx(rounds=2), data, name="fedprox")))
