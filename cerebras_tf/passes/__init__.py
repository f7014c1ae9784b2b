"""Graph -> better graph, one file each; every pass is verified after it ran."""
