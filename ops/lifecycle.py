"""`python -m ops.lifecycle`: a job's states and moves as a diagram, drawn from the table that the engine obeys."""

from pathlib import Path

from engine.events import EVENT_TYPES
from engine.job import NEXT, TERMINAL, State

FILE = Path(__file__).parents[1] / "docs" / "lifecycle.md"


def draw() -> str:
    """Markdown with a Mermaid state diagram."""
    tags = {kind: tag for tag, kind in EVENT_TYPES.items()}
    lines = ["# A job's life", "", "Drawn by `python -m ops.lifecycle` from `engine.job.NEXT`.", ""]
    lines += ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.QUEUED}: job_submitted"]
    for state, moves in NEXT.items():
        for target in State:
            if events := [tags[kind] for kind, following in moves.items() if following is target]:
                lines.append(f"    {state} --> {target}: {', '.join(events)}")
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    FILE.write_text(draw())
