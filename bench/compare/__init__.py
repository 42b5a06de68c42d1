"""Gradring beside its peers, on the same work in the same minutes: `python bench/compare --help`.

`command` reads what is wanted, `environments` installs the peers, and one module each measures:
`collectives`, `network` (the same between hosts that `namespaces` makes), `rows`, and `training`
(whose `contenders` are programs of bench/ps_peers and examples). Everything goes into JSON
(`records`); `markdown`, `pictures` and `heat_map` are made from nothing else.
"""
