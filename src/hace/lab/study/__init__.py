"""Studies: methods under a protocol, on any data, in one process or on a cluster. `hace.Study` is the front door.

A preset and a user's choices make a plan (`plan`), a plan in a folder is a study (`folder`), and the scheduler makes its runs
on an executor. `cells` holds the protocols: what is searched, and how one run is chosen among several. `hace.paper.STUDIES`
are presets like any other.
"""
