"""Secret draws, and noise on grids and manifolds."""
