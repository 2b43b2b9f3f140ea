"""Every table and figure of the paper, each experiment in a file with its figure beside it; and benchmarks."""
