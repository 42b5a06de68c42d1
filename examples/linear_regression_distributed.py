"""Linear regression by gradient descent, on any number of ranks: gradring run -n 4 ..."""

import numpy as np

import gradring as gr

comm = gr.init()
random = np.random.default_rng(0)
truth = np.array([2.0, -3.0, 0.5])
X = random.standard_normal((10_000, 3))
y = X @ truth + 0.1 * random.standard_normal(len(X))

w = np.zeros(3)
optimizer = gr.SyncOptimizer([w], gr.optim.SGD(lr=0.01, momentum=0.9), comm)
for epoch in range(5):
    order = gr.shard(len(X), comm, epoch=epoch)
    for rows in np.array_split(order, 100):
        error = X[rows] @ w - y[rows]
        gradient = X[rows].T @ error / len(rows)
        optimizer.step([gradient], weight=len(rows))
    loss = np.square(X @ w - y).mean() / 2
    if comm.rank == 0:
        print(f"epoch {epoch}: loss {loss:.6f}")
if comm.rank == 0:
    print("w =", w.round(4))
