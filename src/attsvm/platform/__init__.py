"""What the package stands on besides mathematics: kernels, files, clusters, memory, extras, summaries."""
