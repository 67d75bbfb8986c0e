"""The problem, the norms, what an answer is worth: nothing here solves, trains or draws."""
