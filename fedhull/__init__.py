"""FedHull: a federated hyperbolic SVM from quantised convex hulls (Prakash et al., TMLR 2024)."""
