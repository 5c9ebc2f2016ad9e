"""Rules of layouts: forests level by level, cells that children divide, gaps around nodes."""
