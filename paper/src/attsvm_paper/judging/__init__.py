"""Judging rows: estimates, verdicts on single numbers, tests of whole figures, readings of a protocol."""
