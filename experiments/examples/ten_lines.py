"""Three methods on one partition: their table, and their curves as a picture (half a minute)."""

import fedjax_nc as fnc

skewed = {"partition": "dirichlet", "alpha": 0.3}
results = [
    fnc.run(method, dataset="digits", data=skewed, seeds=(0, 1, 2), seeds_parallel=True)
    for method in ("fedavg", "fedetf", "fedetf | fd(beta=0.5)")
]
print(fnc.table(*results))
fnc.plot(*results).savefig("ten_lines.png")
