"""Linear regression by gradient descent, on one machine."""

import numpy as np

random = np.random.default_rng(0)
truth = np.array([2.0, -3.0, 0.5])
X = random.standard_normal((10_000, 3))
y = X @ truth + 0.1 * random.standard_normal(len(X))

w = np.zeros(3)
velocity = np.zeros(3)
for epoch in range(5):
    order = np.random.default_rng([0, epoch]).permutation(len(X))
    for rows in np.array_split(order, 100):
        error = X[rows] @ w - y[rows]
        gradient = X[rows].T @ error / len(rows)
        velocity = 0.9 * velocity + gradient
        w -= 0.01 * velocity
    loss = np.square(X @ w - y).mean() / 2
    print(f"epoch {epoch}: loss {loss:.6f}")
print("w =", w.round(4))
