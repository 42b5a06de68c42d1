"""What launchers set: torchrun 2.13, Open MPI 4.1, MPICH 4.0 and Slurm 23 as they were seen to."""

from __future__ import annotations

OWN = {
    "GRADRING_RANK": "1",
    "GRADRING_WORLD_SIZE": "4",
    "GRADRING_LOCAL_RANK": "1",
    "GRADRING_LOCAL_WORLD_SIZE": "2",
    "GRADRING_RENDEZVOUS": "[fd00::1]:4000",
    "GRADRING_SECRET": "s" * 64,
}
BY_HAND = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = {
    **BY_HAND,
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "2013724673",
    "PMIX_RANK": "1",
}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_NODELIST": "node[08-09],login",
    "SLURM_JOB_ID": "1234567",
}
TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
}
PADDLE = {
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_TRAINER_ENDPOINTS": "a:1,b:1",
}
