"""The parameter server, from Python."""
