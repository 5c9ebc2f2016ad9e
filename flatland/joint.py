"""Joint forms of the steps and scores of FlatLand and of its rivals."""

from fedbolic.core.types import Params, Tree
from fedbolic.federated.batched.joint import broadcast_step, joint
from flatland.graphs.graph_method import GraphMethod
from flatland.graphs.joint import graph_scores
from flatland.method import FlatLand
from flatland.rivals.gcfl import Gcfl

joint(GraphMethod.step, FlatLand.step)(broadcast_step)
joint(Gcfl.evaluate)(graph_scores)


@joint(Gcfl.step)
def _gcfl_steps(method: Gcfl, local: Tree, gradients: Params, context: Tree, *, axes: Tree) -> Tree:
    del axes
    return method.noted_step(local, gradients, context, num_batch_axes=1)
