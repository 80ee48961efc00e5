"""The report: a capture as one HTML file with findings, latency, sessions, versions, throughput and quality.

`figures.READ` says which tables and columns it is made of, `JOURNEYS` which ones more if the input can be read
again, `document` makes the file. Layers within: `rows` counts,
`figures` says what there is to look at, `charts` how it is drawn, `page` puts it into one file. It needs jinja2 and
vl-convert-python (the extra `report`), which are imported only when a page is made.
"""

from __future__ import annotations

from kdissect.report.figures import READ, Figure, Report, make_report, report
from kdissect.report.lanes.delivery_lanes import READ as JOURNEYS
from kdissect.report.observations import Gathering
from kdissect.report.page import document, ready, render

__all__ = ["JOURNEYS", "READ", "Figure", "Gathering", "Report", "document", "make_report", "ready", "render", "report"]
