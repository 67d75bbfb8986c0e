"""Interior points: one engine, and what each norm adds to a Newton step."""
