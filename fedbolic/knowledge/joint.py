"""Joint forms of this folder's method."""

from fedbolic.federated.batched.joint import broadcast_step, joint
from fedbolic.knowledge.method import KnowledgeEmbedding

joint(KnowledgeEmbedding.step)(broadcast_step)
