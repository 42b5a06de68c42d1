"""`gradring bench pull|push|train`: what the parameter server moves, beside what its parts could.

The command starts servers and workers as a job of its own (`gradring.bench.rows.worker`), measures
the table and the link by themselves before that, and reports rows per second, latencies, staleness
and bytes. Workers wait for each other between rounds, so that all of them are busy at once.
"""
