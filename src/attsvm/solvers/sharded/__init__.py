"""Problems in pieces on many machines: constraints are priced where they lie, the working set is solved here."""
