"""The loop over working sets: constraints are checked in memory or in shards, and the working set is solved here."""
