"""`gradring bench kernels`: each GPU kernel beside the device's copy bandwidth and its peers.

The way of a figure: `options` -> cases (`streaming`, `codecs`, `rows`) with their peers
(`torch_peers`, `cupy_peers`) -> `measure` -> `report`. Over the emulated plugin everything runs,
and the report says that its times mean nothing.
"""
