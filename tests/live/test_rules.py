"""The dashboard and the rules for alerts ask for metrics and labels that exist; Prometheus' own tool reads them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kdissect
from kdissect.live.metrics import Server
from kdissect.live.metrics_server import open_port
from kdissect.live.running_figures import Figures
from kdissect.live.source import open_source
from kdissect.live.watch import Watch
from tests.conftest import ROOT

DASHBOARD, ALERTS = ROOT / "docs" / "live" / "dashboard.json", ROOT / "docs" / "live" / "alerts.yml"


@pytest.fixture(scope="module")
def page(captures: Path) -> str:
    """Metrics of a capture, in Prometheus' own format."""
    source = open_source([str(captures / "k4_session_eviction.pcap")], None, (), None, once=True)
    figures = Figures(deliveries=True)
    Watch(source, figures).run()
    source.close()
    assert figures.deliveries is not None
    figures.deliveries.count(kdissect.open(captures / "k4_java_classic.pcap").table("deliveries"))
    figures.dropped = 3
    figures.sessions = {"1": 4}
    server = Server(open_port("127.0.0.1:0"), figures)
    text = urllib.request.urlopen(server.url).read().decode()
    server.close()
    return str(text)


def asked() -> list[str]:
    """Every expression."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = ALERTS.read_text()
    found += re.findall(r"expr: (?:>-\n\s+)?(.*)", rules)
    assert len(found) > 15
    return found


def test_every_metric_and_label_is_there(page: str) -> None:
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    for expression in asked():
        names = re.findall(r"kdissect_\w+", expression)
        assert names
        assert set(names) <= labels.keys(), expression
        by = {label.strip() for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(",")}
        chosen = set(re.findall(r"[{,]\s*(\w+)=", expression))
        for name in names:
            assert by | chosen <= labels[name], (name, expression)


def test_the_documented_metrics_are_there(page: str) -> None:
    text = (ROOT / "docs" / "live.md").read_text()
    for name in re.findall(r"`(kdissect_\w+)`", text):
        assert f"\n{name}" in page or f"# TYPE {name} " in page, name


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.live
def test_prometheus_reads_them(page: str, tmp_path: Path) -> None:
    """Rules, metrics, and every expression of the dashboard as a rule."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("needs promtool (apt-get install prometheus)")
    rules = tmp_path / "dashboard.yml"
    lines = [expression.replace("$__rate_interval", "1m").replace("$api", "Fetch") for expression in asked()]
    rules.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": [
        {"record": f"panel:{n}", "expr": line} for n, line in enumerate(lines)
    ]}]}))  # fmt: skip
    for path in (ALERTS, rules):
        done = subprocess.run([tool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
    done = subprocess.run([tool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "error" in line.lower() and "parsing" in line]
    assert not complaints, done.stderr


@pytest.mark.live
def test_a_prometheus_gets_them(tmp_path: Path) -> None:
    """A real server scrapes a replay's end: what it stores is what was counted."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs prometheus (apt-get install prometheus)")
    source = open_source([str(ROOT / "captures" / "k4_session_eviction.pcap")], None, (), None, once=True)
    figures = Figures()
    Watch(source, figures).run()
    source.close()
    server = Server(open_port("127.0.0.1:0"), figures)
    target = server.url.removeprefix("http://").removesuffix("/metrics")
    settings = tmp_path / "prometheus.yml"
    settings.write_text(
        f"global: {{scrape_interval: 1s}}\nrule_files: [{ALERTS}]\n"
        f"scrape_configs: [{{job_name: kdissect, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, f"--config.file={settings}", f"--storage.tsdb.path={tmp_path / 'data'}",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        query = f"http://127.0.0.1:{port}/api/v1/query?query=sum(kdissect_exchanges_total)"
        while True:
            assert time.monotonic() < deadline
            time.sleep(0.5)
            try:
                result = json.load(urllib.request.urlopen(query))["data"]["result"]
            except OSError:
                continue
            if result:
                break
        assert float(result[0]["value"][1]) == figures.statuses.total() == 2110
    finally:
        running.terminate()
        running.wait(30)
        server.close()
