from kdissect.tables.brokers import Brokers, split
from kdissect.tables.builder import TableBuilder
from tests.tables.made import completed, connections


def named(*claims, serves, told=None, capture="a"):
    brokers = Brokers()
    for claim in claims:
        brokers.claim(capture, *claim, f"{capture}\t10.0.0.1:9092")
    for place in serves:
        brokers.serves(f"{capture}\t{place}")
    for place, node in (told or {}).items():
        brokers.told[f"{capture}\t{place}"] = {node}
    return {place.split("\t")[1]: name for place, name in brokers.names().items()}


def test_an_address_names_its_node():
    names = named(
        (1, "10.0.0.9", 9092), (2, "10.0.0.8", 9092), serves=["10.0.0.9:9092", "10.0.0.8:9092", "10.0.0.7:9092"]
    )
    assert names == {"10.0.0.9:9092": "1", "10.0.0.8:9092": "2", "10.0.0.7:9092": "10.0.0.7:9092"}


def test_a_name_goes_by_a_port_that_only_one_broker_uses():
    assert named((1, "localhost", 9092), (2, "localhost", 9093), serves=["127.0.0.1:9092", "127.0.0.1:9093"]) == {
        "127.0.0.1:9092": "1",
        "127.0.0.1:9093": "2",
    }
    same_port = [(1, "kafka-1", 9092), (2, "kafka-2", 9092)]
    assert named(*same_port, serves=["10.0.0.1:9092"]) == {"10.0.0.1:9092": "10.0.0.1:9092"}
    assert named(same_port[0], serves=["10.0.0.1:9092", "10.0.0.2:9092"]) == {
        "10.0.0.1:9092": "10.0.0.1:9092",
        "10.0.0.2:9092": "10.0.0.2:9092",
    }


def test_another_address_is_not_taken_by_its_port():
    assert named((1, "172.17.0.2", 9092), serves=["127.0.0.1:9092"]) == {"127.0.0.1:9092": "127.0.0.1:9092"}


def test_claims_that_disagree_name_nobody():
    assert named((1, "10.0.0.9", 9092), (2, "10.0.0.9", 9092), serves=["10.0.0.9:9092"]) == {
        "10.0.0.9:9092": "10.0.0.9:9092"
    }


def test_what_a_client_says_of_its_own_connection_comes_first():
    assert named((1, "10.0.0.9", 9092), serves=["10.0.0.9:9092"], told={"10.0.0.9:9092": 5}) == {"10.0.0.9:9092": "5"}


def test_ipv6():
    names = named((4, "2001:DB8:0::1", 9092), serves=["[2001:db8::1]:9092"])
    assert names == {"[2001:db8::1]:9092": "4"}
    assert split("[2001:db8::1]:9092") == ("2001:db8::1", 9092)


def metadata(*brokers):
    return {"brokers": [{"node_id": n, "host": h, "port": p} for n, h, p in brokers], "topics": []}


def test_claims_are_read_from_messages_and_kept_by_capture():
    made = connections(
        {"capture": 0},
        {"capture": 1},
        {"capture": 0, "broker": ("10.0.0.8", 9092)},
        captures=["a", "b"],
        files=[["a"], ["b"]],
    )
    builder = TableBuilder(made, {"exchanges": ["capture", "broker"], "fetches": ["broker"]})
    early = builder.feed(completed({"conn": 0}, {"conn": 1}, {"conn": 2}))
    builder.feed(
        completed(
            {"api_key": 3, "conn": 0},
            {"api_key": 10, "conn": 0, "n": 1},
            {"api_key": 10, "conn": 0, "n": 2},
            messages={
                (3, 1): {0: metadata((1, "10.0.0.9", 9092))},
                (10, 1): {
                    1: {"node_id": -1, "host": "", "port": -1, "coordinators": None},
                    2: {
                        "node_id": None,
                        "host": None,
                        "port": None,
                        "coordinators": [{"node_id": 2, "host": "10.0.0.8", "port": 9092}],
                    },
                },
            },
        )
    )
    table = builder.finished("exchanges", [early["exchanges"]]).to_pylist()
    assert sorted((row["capture"], row["broker"]) for row in table) == [("a", "1"), ("a", "2"), ("b", "10.0.0.9:9092")]
    again = builder.resolve("exchanges", builder.resolve("exchanges", early["exchanges"]))
    assert sorted(again["broker"].to_pylist()) == ["1", "10.0.0.9:9092", "2"]


def test_listeners_below_their_node():
    builder = TableBuilder(connections({"broker": ("10.0.0.5", 9093)}), {"exchanges": ["broker"]})
    rows = builder.feed(
        completed(
            {"api_key": 55},
            messages={(55, 1): {0: {"nodes": [{"node_id": 7, "listeners": [{"host": "10.0.0.5", "port": 9093}]}]}}},
        )
    )
    assert builder.finished("exchanges", [rows["exchanges"]]).to_pylist() == [{"broker": "7"}]


def test_merge():
    one, two = Brokers(), Brokers()
    one.serves("a\t10.0.0.9:9092")
    two.claim("a", 3, "10.0.0.9", 9092, "a\t10.0.0.8:9092")
    one.merge(two)
    assert one.names() == {"a\t10.0.0.9:9092": "3"}
