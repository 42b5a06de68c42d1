"""A small network in JAX on scikit-learn's digits, with Adam of optax, on one rank or many.

    python examples/digits_jax.py
    gradring run -n 2 examples/digits_jax.py

Every rank takes its part of each global batch, so the path is the same for any number of ranks, up
to rounding. Gradients are averaged inside of the compiled step.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from datasets import load_digits
from options import Parser, at_least

import gradring as gr
import gradring.jax as gj
from gradring.progress import Progress

parser = Parser(__doc__)
parser.add_argument("--epochs", type=at_least(1), default=20)
parser.add_argument(
    "--global-batch", type=at_least(1), default=48, help="examples in a step, over all ranks"
)
parser.add_argument("--compress", choices=["bf16", "fp16", "int8"], help="of the gradients")
options = parser.parse_args()

comm = gr.init()
if options.global_batch % comm.world_size:
    sys.exit(f"--global-batch must be a multiple of the {comm.world_size} ranks")
X, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(X))
X, y = (X[order] / 16).astype(np.float32), y[order].astype(np.int32)
X_train, y_train, X_test, y_test = X[:1437], y[:1437], X[1437:], y[1437:]


def scores(params, x):
    """Return a score for each digit, of one hidden layer with tanh."""
    return jnp.tanh(x @ params["W1"] + params["b1"]) @ params["W2"] + params["b2"]


def mean_loss(params, x, labels):
    """Return the mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), labels).mean()


keys = jax.random.split(jax.random.key(comm.rank))
params = {
    "W1": jax.random.normal(keys[0], (64, 100)) * 0.2, "b1": jnp.zeros(100),
    "W2": jax.random.normal(keys[1], (100, 10)) * 0.1, "b2": jnp.zeros(10),
}  # fmt: skip
params = gj.broadcast(params, comm)  # Each rank has drawn its own.
optimizer = gj.distributed(optax.adam(0.003), comm=comm, compress=options.compress)
state = optimizer.init(params)


@jax.jit
def step(params, state, x, labels):
    """Return parameters and state after a step, and the mean loss of all ranks."""
    loss, grads = jax.value_and_grad(mean_loss)(params, x, labels)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, gj.all_reduce(loss, comm, "avg")


each = options.global_batch // comm.world_size
steps = len(X_train) // options.global_batch
with Progress(options.epochs * steps, rank=comm.rank, label="digits") as progress, gj.own_errors():
    for epoch in range(options.epochs):
        mine = gr.shard(len(X_train), comm, epoch=epoch, drop_last=True)
        for begin in range(0, steps * each, each):
            rows = mine[begin : begin + each]
            params, state, loss = step(params, state, X_train[rows], y_train[rows])
            progress.advance(examples=options.global_batch, loss=float(loss))

if comm.rank == 0:
    guesses = scores(params, X_test).argmax(axis=1)
    print(f"{comm.world_size} ranks: test accuracy {(guesses == y_test).mean():.4f}")
