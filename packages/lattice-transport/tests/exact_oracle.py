"""Transport problems whose costs differ by many orders of magnitude, and their optimum in whole numbers."""

from fractions import Fraction
from itertools import pairwise
from math import lcm

import numpy as np


def optimum(supply, demand, cost):
    """Return (optimal cost, the sum of the absolute terms of one optimal plan), exact for exact masses.

    Successive shortest paths (Dijkstra with potentials) over Python's integers: another algorithm than the simplex.
    """
    costs = [[Fraction(float(x)) for x in row] for row in cost]
    scale = lcm(*(x.denominator for row in costs for x in row))
    costs = [[int(x * scale) for x in row] for row in costs]
    unit = lcm(*(Fraction(x).denominator for x in (*supply, *demand)))
    left, wanted = [int(x * unit) for x in supply], [int(x * unit) for x in demand]
    n, m = len(left), len(wanted)
    flow = [[0] * m for _ in range(n)]
    low = min(map(min, costs))
    potential = [0] * n + [low] * m  # so that no reduced cost is negative
    while any(left):
        start = next(i for i in range(n) if left[i])
        distance, before, done = {start: 0}, {}, set()
        while True:
            node = min((x for x in distance if x not in done), key=distance.__getitem__)
            done.add(node)
            if node >= n and wanted[node - n]:
                break
            if node < n:
                steps = [(n + j, costs[node][j]) for j in range(m)]
            else:
                steps = [(i, -costs[i][node - n]) for i in range(n) if flow[i][node - n]]
            for other, price in steps:
                length = distance[node] + price + potential[node] - potential[other]
                if other not in done and (other not in distance or length < distance[other]):
                    distance[other], before[other] = length, node
        for k in range(n + m):
            potential[k] += min(distance.get(k, distance[node]), distance[node])
        path = [node]
        while path[-1] != start:
            path.append(before[path[-1]])
        path.reverse()
        steps = list(pairwise(path))
        amount = min(left[start], wanted[node - n], *(flow[b][a - n] for a, b in steps if a >= n))
        for a, b in steps:
            if a < n:
                flow[a][b - n] += amount
            else:
                flow[b][a - n] -= amount
        left[start] -= amount
        wanted[node - n] -= amount
    terms = [flow[i][j] * costs[i][j] for i in range(n) for j in range(m)]
    return Fraction(sum(terms), unit * scale), Fraction(sum(map(abs, terms)), unit * scale)


def wide_problem(seed):
    """Return (a, b, cost, exact supply, exact demand): masses of 1, costs over 18 decades and more."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 10)), int(rng.integers(2, 10))
    kind = ("placeholders", "outliers", "log-uniform", "clusters", "metric")[seed % 5]
    single = bool(rng.integers(2))
    if kind == "log-uniform":
        cost = 10.0 ** rng.uniform(-9, 9, (n, m))
    elif kind == "metric":
        x, y = rng.normal(size=n), rng.normal(size=m)
        x[0] = 10.0 ** rng.uniform(6, 9 if single else 40)
        cost = np.subtract.outer(x, y) ** 2
    else:
        cost = rng.random((n, m)) if rng.integers(2) else rng.integers(0, 9, (n, m)).astype(float)
        if rng.integers(4) == 0:
            cost -= 0.5
    if kind == "placeholders":
        cost[rng.random((n, m)) < rng.uniform(0.1, 0.7)] = 10.0 ** rng.integers(12, 38 if single else 300)
    elif kind == "outliers":
        cost[rng.integers(n), :] += 10.0 ** rng.uniform(10, 18)
    elif kind == "clusters":
        cost *= 10.0 ** (9 * rng.integers(0, 3, (n, 1)) - 9)
    cost = cost.astype(np.float32 if single else np.float64)
    weights = int(rng.integers(3))
    if weights == 0:
        supply, demand = [Fraction(1, n)] * n, [Fraction(1, m)] * m
        return None, None, cost, supply, demand
    if weights == 1:  # counts, whose shares are no binary fractions
        total = int(rng.integers(max(n, m), 40))
        counts = [np.bincount(np.r_[np.arange(k), rng.integers(0, k, total - k)], minlength=k) for k in (n, m)]
        supply, demand = ([Fraction(int(x), total) for x in part] for part in counts)
        if rng.integers(2):
            return counts[0], counts[1], cost, supply, demand
        return counts[0] / total, counts[1] / total, cost, supply, demand
    a, b = rng.random(n) + 0.01, rng.random(m) + 0.01
    exact = [[Fraction(float(x)) for x in part] for part in (a, b)]
    supply, demand = ([x / sum(part) for x in part] for part in exact)
    return a / a.sum(), b / b.sum(), cost, supply, demand
