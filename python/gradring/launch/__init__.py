"""`gradring run`: starts the ranks of a job here or on several hosts and ends them together.

The way of a start: `plan` (pure) -> `job` (the loop) -> `link` (one a host) -> `agent` (on that
host) -> the ranks. Their output comes back the same way and leaves through `output`; `outcome`
keeps how it all ended, `lost` what was lost on the way. Nothing is imported here: other hosts run
`gradring.launch.agent` alone.
"""
