import re
from dataclasses import replace
from pathlib import Path

import pytest

from predictor.errors import InvalidInput, UnknownName
from predictor.hardware.catalog import (
    default_cluster,
    find_cluster,
    find_device,
    list_clusters,
    load_cluster_file,
)
from predictor.hardware.links import default_port, own_link, pcie_bytes_per_s
from predictor.hardware.spec import LinkSpec

CLUSTER = """
id = "mine"
device = "t4-pcie-16gb"
devices_per_node = 4
node_count = 2
intra_node = { kind = "pcie", gb_per_s = 15.75, latency_us = 1.5 }
inter_node = { kind = "ethernet", gb_per_s = 1.25, latency_us = 50 }
"""


@pytest.fixture(autouse=True)
def no_clusters_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PERFCAST_CLUSTERS", raising=False)


def test_shipped_clusters_name_shipped_devices_and_their_links() -> None:
    for cluster in list_clusters():
        device = find_device(cluster.device_id)
        assert device.id == cluster.device_id
        levels = {"island": cluster.island, "inter_rack": cluster.inter_rack}
        stated = {name for name, link in levels.items() if link is not None}
        assert set(cluster.sources) == {"intra_node", "inter_node"} | stated
        assert cluster.intra_node.in_switch == own_link(device).in_switch
        assert cluster.inter_node.bytes_per_s <= cluster.intra_node.bytes_per_s
        assert cluster.intra_node.bytes_per_s == pytest.approx(own_link(device).bytes_per_s, rel=0.01)


def test_find_by_alias_and_node_count() -> None:
    cluster = find_cluster("DGX A100:4")
    assert (cluster.id, cluster.device_count) == ("dgx-a100-80gb", 32)
    assert cluster.inter_node.bytes_per_s == 25e9
    assert find_cluster("p4d.24xlarge").device_id == "a100-sxm-40gb"


@pytest.mark.parametrize("name", ["dgx-a100:0", "dgx-a100:-1", "dgx-a100:two", "dgx-a100:"])
def test_wrong_node_count(name: str) -> None:
    with pytest.raises(InvalidInput, match="expected a positive number"):
        find_cluster(name)


def test_unknown_cluster() -> None:
    with pytest.raises(UnknownName, match="dgx-h100-80gb"):
        find_cluster("dgx-h100-81gb")


def test_users_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(CLUSTER)
    assert load_cluster_file(path).inter_node.latency_s == pytest.approx(50e-6)
    monkeypatch.setenv("PERFCAST_CLUSTERS", str(tmp_path))
    assert find_cluster("mine").intra_node.bytes_per_s == 15.75e9
    assert find_cluster("mine:3").device_count == 12


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("devices_per_node = 4", "devices_per_node = 0", "'devices_per_node' is 0"),
        ("latency_us = 50", "latency_ms = 0.05", "inter_node: key 'latency_ms' is unknown"),
        ("gb_per_s = 15.75", "gb_per_s = -1", "intra_node: key 'gb_per_s' is -1"),
        ('device = "t4-pcie-16gb"', "", "'device' is missing"),
        (
            'inter_node = { kind = "ethernet", gb_per_s = 1.25, latency_us = 50 }',
            "inter_node = 5",
            "'inter_node' is 5",
        ),
    ],
)
def test_wrong_cluster_file(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(CLUSTER.replace(old, new))
    with pytest.raises(InvalidInput) as caught:
        load_cluster_file(path)
    assert words in caught.value.message
    assert str(path) in caught.value.message


def test_pcie_rates() -> None:
    assert pcie_bytes_per_s(3) == pytest.approx(15.754e9, rel=1e-3)
    assert pcie_bytes_per_s(4) == pytest.approx(31.508e9, rel=1e-3)
    assert pcie_bytes_per_s(5, lanes=8) == pytest.approx(31.508e9, rel=1e-3)


def test_default_cluster_of_one_node() -> None:
    cluster = default_cluster(find_device("a100-sxm-40gb"), 4)
    assert (cluster.devices_per_node, cluster.node_count) == (4, 1)
    assert (cluster.intra_node.kind, cluster.intra_node.bytes_per_s) == ("nvlink", 300e9)


@pytest.mark.parametrize(("count", "nodes"), [(8, 1), (9, 2), (16, 2), (64, 8)])
def test_default_cluster_of_several_nodes(count: int, nodes: int) -> None:
    cluster = default_cluster(find_device("h100-sxm-80gb"), count)
    assert (cluster.devices_per_node, cluster.node_count) == (8, nodes)
    assert cluster.inter_node.bytes_per_s == 50e9
    assert "assumed" in cluster.sources["inter_node"]


def test_default_links_of_a_card_without_its_own_link() -> None:
    device = find_device("t4-pcie-16gb")
    assert own_link(device).kind == "pcie"
    assert own_link(device).bytes_per_s == pytest.approx(15.754e9, rel=1e-3)
    assert default_port(device).bytes_per_s == 12.5e9


def test_default_cluster_of_nothing() -> None:
    with pytest.raises(InvalidInput):
        default_cluster(find_device("t4"), 0)


@pytest.mark.parametrize("text", ["cluster = 3", "cluster = [3]", "cluster = 'x'"])
def test_cluster_files_of_another_structure_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"mine.toml: key 'cluster' .* under a line \[\[cluster\]\]"):
        load_cluster_file(path)


def test_an_unknown_cluster_lists_each_known_one_once() -> None:
    with pytest.raises(UnknownName) as caught:
        find_cluster("")
    listed = caught.value.message.split("known: ")[1].split(" and ")[0].split(", ")
    assert len(listed) == len(set(listed)) == 12


def test_a_long_name_is_cut() -> None:
    with pytest.raises(UnknownName) as caught:
        find_cluster("x" * 100_000)
    assert len(caught.value.message) < 1000


TOPOLOGY = (
    CLUSTER
    + """
ports_per_node = 1
rails = true
devices_per_island = 2
island = { kind = "nvlink", gb_per_s = 100, latency_us = 1 }
nodes_per_rack = 1
oversubscription = 4
"""
)


def test_a_file_states_islands_ports_rails_and_racks(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TOPOLOGY)
    cluster = load_cluster_file(path)
    assert (cluster.ports_per_node, cluster.rails, cluster.devices_per_island) == (1, True, 2)
    assert cluster.island == LinkSpec("nvlink", 1e-6, 100e9)
    assert cluster.inter_rack == replace(cluster.inter_node, bytes_per_s=1.25e9 / 4)
    assert cluster.rack_count == 2


@pytest.mark.parametrize("missing", ["devices_per_island", "island", "nodes_per_rack", "oversubscription"])
def test_half_a_level_is_refused(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(line for line in TOPOLOGY.splitlines() if not line.startswith(missing)))
    with pytest.raises(InvalidInput, match="belong together"):
        load_cluster_file(path)


def test_fewer_devices_share_the_ports_of_their_node() -> None:
    one_port = find_cluster("aws-g4dn-12xlarge:4x1")
    assert (one_port.device_count, one_port.inter_node.bytes_per_s) == (4, 6.25e9)
    assert find_cluster("aws-g4dn-12xlarge:4x2").inter_node.bytes_per_s == 3.125e9
    own_port = find_cluster("dgx-a100-80gb:4x2")
    assert (own_port.device_count, own_port.inter_node.bytes_per_s) == (8, 25e9)
    assert find_cluster("aws-p4d-24xlarge:2x2").inter_node.bytes_per_s == 12.5e9


@pytest.mark.parametrize("name", ["dgx-a100-80gb:4x0", "dgx-a100-80gb:4x9", "dgx-a100-80gb:4x"])
def test_devices_in_use_fit_a_node(name: str) -> None:
    with pytest.raises(InvalidInput, match="from 1 to 8"):
        find_cluster(name)


def test_the_examples_of_the_guide_are_clusters(tmp_path: Path) -> None:
    guide = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "add-a-cluster.md"
    blocks = re.findall(r"```toml\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    path = tmp_path / "cluster.toml"
    for block in blocks:
        path.write_text(block)
        assert load_cluster_file(path).device_id
    racks = load_cluster_file(path)
    assert racks.rack_count == 8
    assert racks.inter_rack == replace(racks.inter_node, bytes_per_s=25e9)
