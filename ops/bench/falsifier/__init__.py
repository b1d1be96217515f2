"""Whether scheduling by the step earns its keep: a trace of interactive sessions, replayed under each policy."""
