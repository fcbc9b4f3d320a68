"""One-line mutations that the suite must catch: the proof that a smaller suite is as strong as a larger one."""
