"""The operations of a process group, as torch.distributed names them, by ours."""
