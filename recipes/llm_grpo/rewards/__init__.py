"""Rewards of answers: checks of this package, functions of the user in a process of their own, and judges over HTTP."""
