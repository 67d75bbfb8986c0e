"""Interior points: one engine, and the part of a Newton step that depends on the norm."""
