"""Against the libraries' own pipelines, on models of a few kilobytes."""
