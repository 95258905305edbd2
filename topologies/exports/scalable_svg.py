"""SVG drawings that fit the page of a browser."""


def scalable(drawing: str) -> str:
    """Return ``drawing``, whose root has a viewBox, no wider than the page that it is shown in."""
    return drawing.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
