"""How an optimizer over parameter servers steps, whatever its mode."""
