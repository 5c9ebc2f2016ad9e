"""FedHull's tables: corners, cores, rivals, dimensions, distortion."""
