"""What one rank has, for all: states of models, optimizers and the like, and plain values."""
