"""Drawings that stand in a page hold shapes and text, whatever a name contains."""

from emulator.html_page import only_shapes


def test_links_scripts_and_handlers_go() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        'onload="x()" viewBox="0 0 9 9"><script>x()</script><style>*{}</style>'
        '<a xlink:href="javascript:x()"><text x="1" onclick="x()">a &lt;b&gt;</text></a>'
        '<foreignObject><p/></foreignObject><image href="http://e.example/"/>'
        '<path d="M0 0" fill="red" style="fill:url(http://e.example)"/></svg>'
    )
    kept = only_shapes(svg)
    for word in ("script", "style", "href", "onload", "onclick", "foreignObject", "image", "http:"):
        assert word not in kept.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "a &lt;b&gt;" in kept
    assert 'viewBox="0 0 9 9"' in kept
    assert 'd="M0 0"' in kept
