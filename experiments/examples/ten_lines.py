"""Three methods on one partition: their table, and their curves as a picture (half a minute)."""

import fedjax_nc as fnc

results = [
    fnc.run(method, dataset="digits", rounds=20, seeds=(0, 1, 2), seeds_parallel=True,
            data={"partition": "dirichlet", "alpha": 0.1})
    for method in ("fedavg", "fedbabu | fd(beta=0.5)", "fedetf")
]  # fmt: skip
print(fnc.table(*results))
fnc.plot(*results).savefig("ten_lines.png")
