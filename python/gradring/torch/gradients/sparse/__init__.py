"""Gradients in COO format: how they are averaged and clipped."""
