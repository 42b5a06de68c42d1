"""Messages and a sum between ranks.

python examples/hello.py
gradring run -n 4 examples/hello.py
"""

import numpy as np

import gradring as gr

with gr.init() as comm:
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size

    # A message round the ring. It leaves in the background, so nobody waits for the one after.
    sending = comm.send(np.array([comm.rank]), dst=after, async_op=True)
    message = comm.recv(np.empty(1, np.int64), src=before)
    sending.wait()
    print(f"rank {comm.rank} of {comm.world_size}: hello from rank {message[0]}")

    # The same bits on every rank.
    total = comm.all_reduce(np.full(3, comm.rank + 1.0, np.float32))
    print(f"rank {comm.rank}: 1 + ... + {comm.world_size} = {total[0]:g}")
