"""Programs for another environment (`.venv-peers`): they import nothing of ours and speak JSON lines.

A line in is a question, `{"jobs": 16, "seconds": 1.0}`; a line out is its answer, a `Run` as in `ops.bench.store.runs`.
"""
