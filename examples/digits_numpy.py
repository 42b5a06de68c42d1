"""A small network in NumPy on scikit-learn's digits, on one rank or many.

    python examples/digits_numpy.py
    gradring run -n 2 examples/digits_numpy.py

Ranks may run out of batches at different times (1437 examples do not divide evenly): they then take
part in the others' last step with weight zero.
"""

import sys

import numpy as np
from datasets import load_digits
from options import Parser

import gradring as gr
from gradring.progress import Progress

parser = Parser(__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument(
    "--global-batch", type=int, default=48, help="examples in a step, over all ranks"
)
options = parser.parse_args()
if options.epochs < 1 or options.global_batch < 1:
    parser.error("--epochs and --global-batch are at least 1")

comm = gr.init()
if options.global_batch % comm.world_size:
    sys.exit(f"--global-batch must be a multiple of the {comm.world_size} ranks")
X, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(X))
X, y = (X[order] / 16).astype(np.float32), y[order]
X_train, y_train, X_test, y_test = X[:1437], y[:1437], X[1437:], y[1437:]

random = np.random.default_rng(0)
W1 = (random.standard_normal((64, 100)) * 0.2).astype(np.float32)
W2 = (random.standard_normal((100, 10)) * 0.1).astype(np.float32)
b1, b2 = np.zeros(100, np.float32), np.zeros(10, np.float32)
optimizer = gr.SyncOptimizer([W1, b1, W2, b2], gr.optim.Adam(lr=0.003), comm)


def gradients(x, labels):
    """Return the mean loss and its gradients, for one hidden layer with tanh."""
    hidden = np.tanh(x @ W1 + b1)
    scores = hidden @ W2 + b2
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(x))
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    p /= len(x)
    back = (p @ W2.T) * (1 - hidden**2)
    return loss, [x.T @ back, back.sum(axis=0), hidden.T @ p, p.sum(axis=0)]


steps = -(-len(X_train) // options.global_batch)
each = options.global_batch // comm.world_size
with Progress(options.epochs * steps, rank=comm.rank, label="digits") as progress:
    for epoch in range(options.epochs):
        mine = gr.shard(len(X_train), comm, epoch=epoch)
        batches = np.split(mine, range(each, len(mine), each))
        for step, rows in enumerate(optimizer.uneven(batches)):
            if rows is None:
                optimizer.step(None)
                loss = None
            else:
                loss, grads = gradients(X_train[rows], y_train[rows])
                optimizer.step(grads, weight=len(rows))
            done = min(options.global_batch, len(X_train) - step * options.global_batch)
            progress.advance(examples=done, loss=loss)

if comm.rank == 0:
    guesses = (np.tanh(X_test @ W1 + b1) @ W2 + b2).argmax(axis=1)
    print(f"{comm.world_size} ranks: test accuracy {(guesses == y_test).mean():.4f}")
