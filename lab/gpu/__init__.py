"""What scripts/gpu-check is made of: the parts, and how their results are kept and held against the targets."""
