"""The problem and the norms: nothing here solves, trains or draws."""
