"""The loop over working sets: constraints are priced where they lie, in memory or in shards, and solved here."""
