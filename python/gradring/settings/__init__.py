"""What a job is told: the variables of the environment, addresses, and what links cost."""
