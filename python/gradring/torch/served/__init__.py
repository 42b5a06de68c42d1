"""Optimizers of torch whose parameters live on parameter servers."""
