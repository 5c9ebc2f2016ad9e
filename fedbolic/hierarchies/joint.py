"""Joint forms of this folder's method."""

from fedbolic.federated.batched.joint import broadcast_step, joint
from fedbolic.hierarchies.method import HierarchyEmbedding

joint(HierarchyEmbedding.step)(broadcast_step)
