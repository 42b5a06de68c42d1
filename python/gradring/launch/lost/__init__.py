"""What a job has lost: ranks, servers and hosts. Who was first, what is started again and when."""
