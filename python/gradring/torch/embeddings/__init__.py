"""Layers whose rows live on parameter servers, and what a worker keeps of those rows."""
