"""How a call of a process group runs: its tensors, streams and threads, handle and errors."""
