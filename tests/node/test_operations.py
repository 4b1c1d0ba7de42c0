"""What operators are given: a dashboard, alert rules, and OPERATIONS.md, all of this node."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click import Group
from prometheus_client.parser import text_string_to_metric_families

import node
from node.cli import main
from node.config import Config
from node.exposition import Exposition
from node.load import Load
from node.metrics import LANES, Metrics
from node.problems import TABLE
from node.routes import ROUTES
from node.slow_readers import SlowReaders
from tests.node.sample_figures import FIGURES

OPERATIONS = Path(node.__file__).parent / "operations"
ROOT = Path(node.__file__).parents[1]
DOCUMENT = (ROOT / "OPERATIONS.md").read_text()
DASHBOARD = json.loads((OPERATIONS / "grafana.json").read_text())
(GROUP,) = yaml.safe_load((OPERATIONS / "alerts.yaml").read_text())["groups"]
ALERTS: list[dict[str, Any]] = GROUP["rules"]

# Words of PromQL that look like names of metrics, and the one metric that Prometheus makes itself.
NOT_OURS = {
    "absent", "by", "histogram_quantile", "increase", "label_values", "on", "or",
    "group_left", "max", "min", "predict_linear", "rate", "sum", "up", "without",
}  # fmt: skip


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions() -> list[str]:
    """List every query of the dashboard and every rule."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    variables = DASHBOARD["templating"]["list"]
    found += [each["definition"] for each in variables if "definition" in each]
    return found + [rule["expr"] for rule in ALERTS]


def names_in(expression: str) -> set[str]:
    """List the metrics that an expression names; labels and their values are no metrics."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|on|without|group_left) \([^)]*\)", " ", expression)
    bare = re.sub(r"(label_values\([^,]+),[^)]*\)", r"\1)", bare)
    return set(re.findall(r"[a-z_]\w*", bare)) - NOT_OURS


@pytest.fixture(scope="module")
def exposed() -> dict[str, dict[str, set[str]]]:
    """Give each sample's name of a full exposition with its labels and their values."""
    metrics = Metrics()
    for route in ROUTES:
        metrics.answered(route.name, 200, 0.001)
    metrics.watch(Load(1, 1, 1), lambda: 0, SlowReaders(1.0, 1))
    text = asyncio.run(Exposition(metrics).render(FIGURES)).decode()
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def test_every_metric_that_is_asked_for_exists(exposed: dict[str, Any]) -> None:
    """Dashboard and rules name no metric that a node does not show."""
    asked = {name for expression in expressions() for name in names_in(expression)}
    assert len(asked) > 40
    assert asked - exposed.keys() == set()


def test_every_own_metric_is_on_the_dashboard(exposed: dict[str, Any]) -> None:
    """What a node of ours measures is to be seen somewhere."""
    asked = {name for expression in expressions() for name in names_in(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in exposed
        if name.startswith("ranknode_")
    }
    unseen = shown - families - {"ranknode_snapshot_failures"}
    assert unseen == set()


def test_every_label_that_is_asked_for_exists(exposed: dict[str, Any]) -> None:
    """A selector names labels that its metric has, and of ours values that it can have."""
    selectors = 0
    for expression in expressions():
        for name, inside in re.findall(r"([a-z_]\w*)\{([^}]*)\}", expression):
            for label, operator, values in re.findall(r'(\w+)(=~|=)"([^"]*)"', inside):
                if label in ("job", "instance"):
                    continue  # which Prometheus adds
                selectors += 1
                assert label in exposed[name], (name, label)
                if values.startswith("$") or (label, operator) == ("board", "=~"):
                    continue
                assert set(values.split("|")) <= exposed[name][label], (name, label, values)
    assert selectors > 50


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Panels have ids of their own, places that do not overlap, and the chosen data source."""
    assert DASHBOARD["schemaVersion"] >= 36  # of Grafana 10
    assert DASHBOARD["uid"]
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(DASHBOARD)))
    assert used - {"__rate_interval", "__all"} <= variables.keys()


def test_expressions_are_balanced() -> None:
    """Every bracket of an expression is closed."""
    for expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression


def test_every_alert_says_what_to_do() -> None:
    """Each rule has a severity, a summary, and a section of its own in OPERATIONS.md."""
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    sections = re.findall(r"^### (Ranknode\w+)$", DOCUMENT, re.MULTILINE)
    assert sections == names
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        section = DOCUMENT.split(f"### {rule['alert']}\n", 1)[1].split("\n#", 1)[0]
        assert len(section.split()) > 20, rule["alert"]


def test_a_limit_that_a_rule_names_is_shown() -> None:
    """A bound that is compared with stands among those that a node shows."""
    named = {name for each in expressions() for name in re.findall(r'\{[^}]*name="(\w+)"', each)}
    assert named <= FIGURES.limits.keys()
    assert named <= set(Config.__struct_fields__)


def test_the_document_speaks_of_what_there_is(exposed: dict[str, Any]) -> None:
    """Settings, metrics, commands, codes and files that OPERATIONS.md names are the node's own."""
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", DOCUMENT))
    metrics = {word for word in words if word.startswith("ranknode_")}
    assert metrics
    assert metrics <= exposed.keys()
    settings = {word for word in words if re.search("_(max|seconds|bytes|events)$", word)} - metrics
    assert len(settings) > 5
    assert settings <= {*Config.__struct_fields__, "node_filesystem_avail_bytes"}
    assert isinstance(main, Group)
    commands = set(re.findall(r"(?:`|^    |/)ranknode ([a-z]+)", DOCUMENT, re.MULTILINE))
    assert commands <= main.commands.keys()
    assert commands >= {"backup", "verify", "rebuild", "key", "serve"}
    for code in re.findall(r"`(?:503|504|507|429) (\w+)`", DOCUMENT):
        assert code in TABLE
    for link in re.findall(r"\]\(([^)#:]+)\)", DOCUMENT):
        assert (ROOT / link).exists(), link
    for target in re.findall(r"`make ([a-z-]+)", DOCUMENT):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_the_documents_limits_of_a_proxy_are_the_defaults() -> None:
    """What a proxy in front is told to allow is what the node allows."""
    defaults = msgspec.structs.asdict(Config(data_directory="unused"))
    assert f"client_max_body_size {defaults['body_bytes_max'] >> 20}m;" in DOCUMENT
    kibibytes = defaults["header_bytes_max"] >> 10
    assert f"large_client_header_buffers 2 {kibibytes}k;" in DOCUMENT
    assert 2 * kibibytes << 10 <= defaults["head_bytes_max"]
    (keepalive,) = re.findall(r"keepalive_timeout (\d+)s;", DOCUMENT)
    assert int(keepalive) < defaults["keepalive_seconds"]


def test_lanes_are_those_that_boards_have() -> None:
    """The lanes that calls are counted by are named once."""
    assert len(set(LANES)) == len(LANES) == 3


def test_the_files_come_with_the_package() -> None:
    """Whoever installs the package has the dashboard and the rules."""
    declared = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^node = \[.*"operations/\*".*\]$', declared, re.MULTILINE)
    assert importlib.metadata.version("prometheus-client")
