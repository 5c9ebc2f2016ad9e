"""Joint forms of the steps and scores of FlatLand and of its rivals."""

from fedbolic.core.types import Params, Tree
from fedbolic.federated.batched.joint import joint, mapped_step, step_by_numbers, works_by_numbers
from flatland.graphs.graph_method import GraphMethod
from flatland.method import FlatLand
from flatland.rivals.fedpub import FedPub
from flatland.rivals.gcfl import Gcfl

joint(GraphMethod.step, relies_on=(GraphMethod.regularised, FedPub.regularised))(step_by_numbers)
joint(FlatLand.step)(step_by_numbers)


@joint(Gcfl.step, relies_on=(GraphMethod.regularised,))
def _gcfl_steps(method: Gcfl, local: Tree, gradients: Params, context: Tree, *, axes: Tree) -> Tree:
    if not works_by_numbers(method.optimizer):
        return mapped_step(method, local, gradients, context, axes=axes)
    return method.step(local, gradients, context, num_batch_axes=1)
