"""The floor of the package below its mathematics: kernels, files, clusters, memory, extras, summaries."""
