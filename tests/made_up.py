"""Made-up but plausible numbers of every study, in the shape the figures draw."""

import numpy as np


def hessian(seed, clients=10):
    random = np.random.default_rng(seed)
    top = 300 / (1 + seed)
    eigenvalues = sorted(top * random.uniform(0.2, 1, 8), reverse=True)
    x = np.linspace(-0.1 * top, 1.05 * eigenvalues[0], 400)
    y = np.exp(-(x**2) / (2 * (0.02 * top) ** 2))
    y += sum(1e-5 * np.exp(-((x - e) ** 2) / (2 * (0.01 * top) ** 2)) for e in eigenvalues)
    trace = top * random.uniform(15, 25, clients)
    matching = {
        "H_N": 11000.0 / (1 + seed),
        "H_D": 0.97,
        "H_N_squared": 4.1e9,
        "H_D_squared": 3e-5,
        "H_N_others": 12000.0 / (1 + seed),
        "H_D_others": 0.92,
    }
    return {
        "examples": 1000,
        "parameters": 61_000,
        "eigenvalues": [float(e) for e in eigenvalues],
        "power": {"eigenvalue": float(eigenvalues[0]) * 0.999, "products": 61},
        "trace": {"mean": float(trace.mean()), "sem": 0.03 * float(trace.mean()), "probes": 100},
        "density": {"x": x.tolist(), "y": y.tolist()},
        "clients": {
            "ids": list(range(clients)),
            "trace": trace.tolist(),
            "trace_sem": (0.05 * trace).tolist(),
            "matching": {"tensor": matching, "parameter": {k: v / 2 for k, v in matching.items()}},
        },
    }


def landscape(seed, clients=6, points=31):
    random = np.random.default_rng(seed)
    planes = {}
    for name, sharp in (("eigenvectors", 40.0), ("random", 2.0), ("clients", 8.0)):
        x = y = np.linspace(-1, 1, points)
        loss = 0.3 + sharp / (1 + seed) * (x[None] ** 2 + 0.4 * y[:, None] ** 2)
        loss += 0.05 * np.sin(5 * x[None]) * np.cos(4 * y[:, None])
        models = [{"name": "global", "x": 0.0, "y": 0.0, "loss": 0.3}]
        if name == "clients":
            places = random.normal(0, 0.4, (clients, 2))
            models += [
                {"name": f"client {i}", "x": float(a), "y": float(b), "loss": 1.0}
                for i, (a, b) in enumerate(places)
            ]
        axes = {"eigenvectors": ["eigenvector 1", "eigenvector 2"]}.get(
            name, ["first direction", "second direction"]
        )
        planes[name] = {
            "x": x.tolist(),
            "y": y.tolist(),
            "loss": loss.tolist(),
            "axes": axes,
            "models": models,
        }
    return {"planes": planes}


def _collapse(random, low):
    return {
        "nc1": 0.6 * low,
        "within_share": 0.4 * low,
        "nc2": 20 * low,
        "nc2_norms": 0.2 * low,
        "nc2_angles": 0.15 * low,
        "nc3": 0.8 * low,
        "nc4": 0.05 * low,
        "nc_error": 0.1 * low * random.uniform(0.8, 1.2),
    }


def collapse(seed, rounds=20):
    random = np.random.default_rng(seed)
    tracked = [
        {
            "round": 5 * r,
            **_collapse(random, (1 + seed) * (0.3 + np.exp(-r / 8))),
            "features_nc_error": 0.3 * np.exp(-r / 8),
            "consistency": 1 - 0.5 * np.exp(-r / 8),
            "features_consistency": 0.8 - 0.5 * np.exp(-r / 8),
        }
        for r in range(1, rounds + 1)
    ]
    return {
        "features": _collapse(random, 1.5 + seed),
        "projected": _collapse(random, 1.0 + seed),
        "consistency": {"features": 0.6, "projected": 0.8 - 0.1 * seed},
        "tracked": tracked,
    }


def spectrum(seed, size=128, rounds=20):
    fall = (2 + seed) * 6 / size
    features = 3 * np.exp(-fall * np.arange(size))
    projected = np.where(np.arange(10) < 9, 1.5 * np.exp(-0.3 * np.arange(10)), 1e-14)
    tracked = [
        {
            "round": 5 * r,
            "features_effective_rank": 40.0 / (1 + seed) + r / 2,
            "projected_effective_rank": 5.0 + 4 * (1 - np.exp(-r / 5)) - 0.3 * seed,
        }
        for r in range(1, rounds + 1)
    ]
    return {
        "features": {
            "singular": features.tolist(),
            "effective_rank": 40.0 / (1 + seed),
            "effective_rank_correlation": 55.0 / (1 + seed),
        },
        "projected": {
            "singular": projected.tolist(),
            "effective_rank": 6.2,
            "effective_rank_correlation": 8.1,
        },
        "tracked": tracked,
    }


def alignment(seed, clients=20, rounds=20):
    random = np.random.default_rng(seed)

    def side(shift):
        return {
            "cosine": (0.7 - shift + 0.08 * random.normal(size=clients)).tolist(),
            "gap": (0.1 - shift + 0.05 * random.normal(size=clients)).tolist(),
            "distance": (2 + 8 * shift + 0.5 * random.normal(size=clients)).tolist(),
            "relative": (0.3 + shift + 0.05 * random.normal(size=clients)).tolist(),
            "angle": (15 + 60 * shift + 4 * random.normal(size=clients)).tolist(),
        }

    sides = {"observed": side(0.05 * seed), "unobserved": side(0.3 + 0.05 * seed)}
    tracked = [
        {"round": 5 * r}
        | {
            f"{name}_{key}": float(np.mean(values)) * (1 - np.exp(-r / 4))
            for name, numbers in sides.items()
            for key, values in numbers.items()
        }
        for r in range(1, rounds + 1)
    ]
    return {"ids": list(range(clients)), **sides, "tracked": tracked}


def relations(seed, classes=10, clients=20, points=600):
    random = np.random.default_rng(seed)

    def softmax(logits):
        return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    logits = random.normal(size=(classes, classes)) + (5 - seed) * np.eye(classes)
    shares = random.dirichlet(0.1 * np.ones(classes), clients)
    norms = 1 + 0.8 * shares + 0.1 * random.normal(size=shares.shape)
    centres = 30 * random.normal(size=(classes, 2))
    labels = random.integers(classes, size=points)
    pets = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship"]
    return {
        "names": [*pets, "truck"] if classes == 10 else [f"class {i}" for i in range(classes)],
        "class_relations": softmax(logits).tolist(),
        "soft_labels": softmax(logits + 0.5 * random.normal(size=logits.shape)).tolist(),
        "distance": {"frobenius": 0.412 + seed, "feddw": 0.0041},
        "norms": norms.tolist(),
        "shares": shares.tolist(),
        "correlation": 0.83,
        "tsne": {
            "points": (centres[labels] + 5 * random.normal(size=(points, 2))).tolist(),
            "labels": labels.tolist(),
            "vectors": (centres + 2 * random.normal(size=centres.shape)).tolist(),
        },
    }


def bias(seed, clients=20, classes=10):
    random = np.random.default_rng(seed)

    def cosines(near):
        rows = random.normal(size=(clients, 16)) + near
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows @ rows.T).tolist()

    shares = random.dirichlet(0.1 * np.ones(classes), clients)
    heaps = random.normal(size=(classes, 2))
    return {
        "ids": list(range(clients)),
        "classifiers": cosines(0.5 + seed),
        "prototypes": cosines(1.0 + seed),
        "mean_classifiers": 0.2 + 0.1 * seed,
        "mean_prototypes": 0.5 + 0.1 * seed,
        "counts": np.round(shares * random.integers(100, 1000, clients)[:, None]).tolist(),
        "tsne": (30 * heaps + (1 + 5 * seed) * random.normal(size=(clients, classes, 2))).tolist(),
    }


def cost(seed, rounds=50):
    random = np.random.default_rng(seed)
    curve = [
        [r, float(0.6 * (1 - np.exp(-r / (8 + 4 * seed))) + 0.02 * random.normal())]
        for r in range(1, rounds + 1)
    ]
    up, down, participants = 2_440_000 + 400_000 * seed, 2_440_000, 5
    targets = []
    for goal in (0.4, 0.5, 0.58):
        first = next((r for r, accuracy in curve if accuracy >= goal), None)
        moved = None if first is None else float(first * participants * (up + down))
        targets.append({"accuracy": goal, "round": first, "bytes": moved})
    return {
        "parameters": 610_000,
        "mflops": 87.3,
        "bytes_up": up,
        "bytes_down": down,
        "flops_per_round": 1.5e11,
        "participants": participants,
        "curve": curve,
        "targets": targets,
    }
