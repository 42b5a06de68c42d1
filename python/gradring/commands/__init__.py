"""What the commands have alike: the files they read and write, how they end, what they start."""
