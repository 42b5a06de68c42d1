"""Who a process is, by the variables its launcher has set, and its job's secret.

The launcher of our own, `gradring run`, is `gradring.launch`.
"""
