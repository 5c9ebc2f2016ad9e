"""Learn one map of products from the taxonomies in a folder, one file for every shop."""

import fedbolic as fb

method = fb.hierarchies.HierarchyEmbedding(dim=5, rounds=5)
folder = fb.run.run(method, fb.data.HolderFiles("shops"), name="shops")
print(fb.load(folder).nearest("MacBook", 3))
