"""What modes ask of parameter servers, and who answers."""
