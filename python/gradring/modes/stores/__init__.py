"""`Store`, what modes ask of parameter servers; who answers, and what workers agree on before."""
