"""Batch norm whose means and variances are those of all ranks' batches together."""
