"""Who a process is in the job that a launcher has started, ours or another one's."""
