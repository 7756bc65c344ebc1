"""A loop of one's own around the round: test a moving average of the global model (ten seconds).

With few participants the global model swings from round to round, and its average does not. A round
takes over the memory of the state it is given, so what should stay is copied.
"""

import dataclasses

import jax

import fedjax_nc as fnc

job = fnc.prepare("fedavg", dataset="digits", seed=0)  # takes the words of fnc.run
round_fn = fnc.make_round(job.task, job.executor)  # compiled once
state = fnc.first_state(job)
average = jax.tree.map(lambda new: new.copy(), state.weights)
for number in range(30):
    state, metrics = round_fn(state, fnc.make_hyper(job.task, number), job.data)
    average = jax.tree.map(lambda old, new: 0.8 * old + 0.2 * new, average, state.weights)
    if (number + 1) % 5 == 0:
        loss = metrics.sums["loss"] / metrics.sums["examples"]
        last = fnc.evaluate(job, state)["global_accuracy"]
        mean = fnc.evaluate(job, dataclasses.replace(state, weights=average))["global_accuracy"]
        print(f"round {number + 1}: loss {loss:.3f}, accuracy {last:.3f}, average {mean:.3f}")
