"""Studies: methods under a protocol, on any data, in one process or on a cluster. `hace.Study` is the front door.

A preset and a user's choices make a plan (`plan`), a plan in a folder is a study (`folder`), and the scheduler makes its runs
on an executor. `configurations` holds the numbers of a study and the runs that lead to them, `comparison` chooses one run among
several, `records` are the runs. `hace.paper.STUDIES` are presets like any other.
"""
