"""A page in a frame, as notebooks show it.

The frame is sandboxed: its script runs apart from the notebook, and cannot reach its cells.
"""

from __future__ import annotations

HEIGHT = 640  # pixels


def framed(html: str, height: int = HEIGHT) -> str:
    """A document in a frame of its own; what it says is an attribute, never markup."""
    inside = html.replace("&", "&amp;").replace("'", "&#39;")
    return (
        f"<iframe srcdoc='{inside}' sandbox='allow-scripts allow-downloads' title='attention' "
        f"style='width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 8px'>"
        "</iframe>"
    )
