"""Gradients on their way from backward to the step: in buckets, averaged over all ranks."""
