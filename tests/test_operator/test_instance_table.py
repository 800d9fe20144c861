"""The operator's own table of instance types: what it changes, and that nothing in it does harm."""

from __future__ import annotations

import csv
from decimal import Decimal
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferbench_operator.core.instance_table import MAX_BYTES, with_table
from inferbench_operator.core.placement import Placement, Room, SpecRefusedError, place
from inferbench_operator.core.price import Price
from inferbench_operator.models.benchmark import Accelerator, Runner
from inferbench_operator.models.cost import Pricing
from inferbench_operator.models.instances import Catalogue, packaged_catalogue
from inferbench_runner.contract import AcceleratorKind

PACKAGED = packaged_catalogue()


def _read(text: str) -> Catalogue:
    return with_table(PACKAGED, text.encode())


def _placed(
    text: str, *types: str, runner: Runner | None = None, resource: str | None = None, exclusive: bool = True
) -> Placement:
    """Return where pods for these types go, given a table in which nothing is wrong."""
    found = _read(text)
    assert (found.problem, found.problems) == ("", {})
    accelerator = Accelerator.model_validate({"name": "acc", "instanceTypes": types, "resourceName": resource})
    return place(accelerator, found, exclusive=exclusive, runner=runner)


@pytest.mark.parametrize(
    ("price", "usd"), [('"0.61"', "0.61"), ("0.61", "0.61"), ("0.10", "0.10"), ("2", "2"), ("'0'", "0")]
)
def test_a_price_is_taken_as_it_is_written(price: str, usd: str) -> None:
    """With quotes or without, to the last digit; all else is as before."""
    before = PACKAGED.types["inf2.xlarge"]
    after = _read(f"inf2.xlarge: {{usdPerHour: {price}}}").types["inf2.xlarge"]
    assert str(after.usd_per_hour) == usd
    assert before.usd_per_hour == Decimal("0.7582"), "the package's own stays what it is"
    for name in (
        "kind",
        "resource",
        "devices",
        "neuron_cores",
        "allocatable_cpu",
        "allocatable_memory",
        "architecture",
    ):
        assert getattr(after, name) == getattr(before, name)


def test_other_types_are_as_they_were() -> None:
    """Whatever is said of one."""
    found = _read("inf2.xlarge: {usdPerHour: '1'}\ng6x.large: {kind: NVIDIA, devices: 1}")
    assert {name: one for name, one in found.types.items() if name in PACKAGED.types and name != "inf2.xlarge"} == {
        name: one for name, one in PACKAGED.types.items() if name != "inf2.xlarge"
    }


def test_a_type_is_added_in_full() -> None:
    """As in the package: 4 processors leave 3, and 16 GiB three quarters less 300 MiB, of which a tenth stays."""
    text = """
    g6x.large: {kind: NVIDIA, resourceName: nvidia.com/gpu, devices: 1, architecture: amd64, processors: 4,
                memoryGiB: "16", usdPerHour: "1.10"}
    """
    assert _placed(text, "g6x.large") == Placement(
        kind=AcceleratorKind.NVIDIA,
        instance_types=("g6x.large",),
        resource="nvidia.com/gpu",
        devices=1,
        taints=("nvidia.com/gpu",),
        architecture="amd64",
        room=Room(3, 11988 - 1198),
        price=Price(Decimal("1.10"), Pricing.ON_DEMAND, "g6x.large", "the operator's own table"),
        used_share=Decimal(1),
    )


def test_what_is_not_given_is_not_known() -> None:
    """No size, no price, no architecture; the resource is the usual one of the kind."""
    assert _placed("inf3.xlarge: {kind: Neuron, devices: 2}", "inf3.xlarge") == Placement(
        kind=AcceleratorKind.NEURON,
        instance_types=("inf3.xlarge",),
        resource="aws.amazon.com/neuron",
        devices=2,
        taints=("aws.amazon.com/neuron",),
    )


def test_a_type_of_no_known_architecture_may_be_of_any() -> None:
    """So a label of one contradicts nothing; it does where the table says another."""
    runner, table = Runner(node_selector={"kubernetes.io/arch": "arm64"}), "g6x.large: {kind: NVIDIA, devices: 1"
    assert _placed(f"{table}}}", "g6x.large", runner=runner).devices == 1
    with pytest.raises(SpecRefusedError, match=r"kubernetes\.io/arch: arm64"):
        _placed(f"{table}, architecture: amd64}}", "g6x.large", runner=runner)


def test_a_type_without_devices_is_added() -> None:
    """Of the kind CPU."""
    placement = _placed("t3.large: {kind: CPU, processors: 2, memoryGiB: '8', usdPerHour: '0.0832'}", "t3.large")
    assert (placement.kind, placement.resource, placement.devices) == (AcceleratorKind.CPU, None, 0)
    assert placement.room == Room(1, 5844 - 1024)
    assert placement.usd_per_hour == Decimal("0.0832")


def test_a_shared_device_is_counted_by_its_own_resource() -> None:
    """Where a device plugin gives four parts of each GPU another name, a whole node has four of them."""
    shared = "g5.xlarge: {resourceName: nvidia.com/gpu.shared, devices: 4}"
    placement = _placed(shared, "g5.xlarge")
    assert (placement.resource, placement.devices) == ("nvidia.com/gpu.shared", 4)
    assert placement.taints == ("nvidia.com/gpu", "nvidia.com/gpu.shared")
    assert placement.room == Room(3, 12746)
    with pytest.raises(SpecRefusedError, match=r"offer nvidia\.com/gpu and nvidia\.com/gpu\.shared"):
        _placed(shared, "g5.xlarge", "g5.2xlarge")
    chosen = _placed(shared, "g5.xlarge", "g5.2xlarge", resource="nvidia.com/gpu", exclusive=False)
    assert (chosen.resource, chosen.devices, chosen.room) == ("nvidia.com/gpu", 1, None)


def test_of_a_type_that_becomes_another_nothing_of_the_devices_stands() -> None:
    """A node whose devices nobody offers is one without."""
    placement = _placed("inf2.xlarge: {kind: CPU}", "inf2.xlarge")
    assert (placement.kind, placement.resource, placement.devices) == (AcceleratorKind.CPU, None, 0)
    assert _read("inf2.8xlarge: {devices: 2}").types["inf2.8xlarge"].neuron_cores is None


@pytest.mark.parametrize("text", ["", "# no entry yet\n", "{}"])
def test_an_empty_table_is_one(text: str) -> None:
    """Nothing is wrong with it, and nothing changes."""
    assert _read(text) == PACKAGED


@pytest.mark.parametrize(
    ("name", "entry", "words"),
    [
        pytest.param(
            "inf2.xlarge", "{usdPerHour: cheap}", "usdPerHour is 'cheap', but must be a decimal", id="no number"
        ),
        pytest.param("inf2.xlarge", "{usdPerHour: -1}", "usdPerHour is '-1', but must be a decimal", id="negative"),
        pytest.param("inf2.xlarge", "{usdPerHour: .nan}", "usdPerHour is '.nan', but must be a decimal", id="NaN"),
        pytest.param("inf2.xlarge", "{usdPerHour: NaN}", "usdPerHour is 'NaN', but must be a decimal", id="NaN again"),
        pytest.param("inf2.xlarge", "{usdPerHour: 1e3}", "usdPerHour is '1e3', but must be a decimal", id="exponent"),
        pytest.param("inf2.xlarge", "{usdPerHour: '0,61'}", "usdPerHour is '0,61', but must be", id="a comma"),
        pytest.param("inf2.xlarge", "{usdPerHour: [1]}", "usdPerHour is ['1'], but must be a decimal", id="a list"),
        pytest.param("inf2.xlarge", "{usdPerHour: }", "usdPerHour is '', but must be a decimal", id="nothing"),
        pytest.param(
            "inf2.xlarge", "{price: 1}", "'price' is none of the fields kind, resourceName", id="unknown field"
        ),
        pytest.param("inf2.xlarge", "{usd_per_hour: 1}", "'usd_per_hour' is none of", id="another spelling"),
        pytest.param(
            "inf2.xlarge", "{kind: TPU}", "kind is 'TPU', but must be Neuron, NVIDIA or CPU", id="unknown kind"
        ),
        pytest.param("inf2.xlarge", "{devices: 0}", "devices is '0', but must be a whole number", id="no device"),
        pytest.param("inf2.xlarge", "{processors: 4.5}", "processors is '4.5', but must be", id="half a processor"),
        pytest.param("inf2.xlarge", "{memoryGiB: 16Gi}", "memoryGiB is '16Gi', but must be", id="a unit too many"),
        pytest.param(
            "inf2.xlarge", "{architecture: x86}", "architecture is 'x86', but must be amd64", id="architecture"
        ),
        pytest.param("inf2.xlarge", "0.61", "is '0.61', but must be a mapping", id="a price alone"),
        pytest.param(
            "inf2.xlarge",
            "{resourceName: nvidia.com/gpu}",
            "resourceName is 'nvidia.com/gpu', but must begin with aws.amazon.com/",
            id="another vendor's resource",
        ),
        pytest.param("c6i.large", "{devices: 1}", "devices is 1, but a type of kind CPU has none", id="a CPU's device"),
        pytest.param(
            "inf2.xlarge", "{kind: NVIDIA}", "devices is missing; say how many of nvidia.com/gpu", id="a change"
        ),
        pytest.param("g5.xlarge", "{resourceName: nvidia.com/x}", "devices is missing; say how", id="another resource"),
        pytest.param("g6x.large", "{usdPerHour: '1'}", "kind is missing", id="an addition without a kind"),
        pytest.param("g6x.large", "{kind: NVIDIA}", "devices is missing", id="an addition without a count"),
    ],
)
def test_a_wrong_entry_changes_nothing_and_is_told(name: str, entry: str, words: str) -> None:
    """By the names of type and field, and the value; the entry beside it counts."""
    found = _read(f"g5.xlarge: {{usdPerHour: '1'}}\n{name}: {entry}" if name != "g5.xlarge" else f"{name}: {entry}")
    assert found.types.get(name) == PACKAGED.types.get(name)
    assert list(found.problems) == [name]
    assert f"{name}" in found.problems[name]
    assert words in found.problems[name]
    assert found.problems[name].endswith(". Until it is corrected, the entry changes nothing.")
    if name != "g5.xlarge":
        assert found.types["g5.xlarge"].usd_per_hour == Decimal(1)
    assert found.problem == ""


def test_what_is_shown_of_a_value_is_short_and_printable() -> None:
    """Whatever somebody has pasted there."""
    found = _read('inf2.xlarge: {usdPerHour: "' + "\\e[31m" * 1000 + '"}')
    assert len(found.problems["inf2.xlarge"]) < 300
    assert found.problems["inf2.xlarge"].isprintable()


@pytest.mark.parametrize("name", ["inf2", "inf2 xlarge", "Inf2.XLarge", '"\\e"', '"\\ud800"', "x." + "y" * 1000])
def test_a_name_that_no_type_can_have_is_told(name: str) -> None:
    """It is no entry of a type that a benchmark could name, so only the log has it."""
    found = _read(f"{name}: {{kind: CPU}}")
    assert found.types == PACKAGED.types
    (sentence,) = found.problems.values()
    assert "must be the name of an instance type" in sentence
    assert len(sentence) < 300
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(b"[1", "line 1, column 3", id="no YAML"),
        pytest.param(b"- inf2.xlarge", "must be a mapping of instance types", id="a list"),
        pytest.param(b"inf2.xlarge", "must be a mapping of instance types", id="a text"),
        pytest.param(b"a: {}\n---\nb: {}", "line 2, column 1", id="two documents"),
        pytest.param(b"a.b: &x {kind: CPU}\nc.d: *x", "line 2, column 6: aliases can't be used", id="an alias"),
        pytest.param(b"a.b: {}\na.b: {}", "line 2, column 1: 'a.b' is there twice", id="a type twice"),
        pytest.param(b"a.b: {kind: CPU,\n kind: CPU}", "line 2, column 2: 'kind' is there twice", id="a field twice"),
        pytest.param(b"? [a]\n: {}", "found unhashable key", id="a list for a name"),
        pytest.param(b"\xff\xfe\x00", "utf-8", id="bytes"),
        pytest.param(b"a: \x00", "special characters are not allowed", id="a control character"),
        pytest.param(b'"\\UFFFFFFFF": {}', "no YAML", id="a character that there is not"),
        pytest.param(b"[" * 20000, "nested too deeply", id="a well"),
        pytest.param(b"#" * (MAX_BYTES + 1), "larger than 1048576 bytes", id="too large"),
    ],
)
def test_what_is_no_table_changes_nothing_and_is_told(text: bytes, words: str) -> None:
    """In one sentence, for everybody."""
    found = with_table(PACKAGED, text)
    assert found.types == PACKAGED.types
    assert found.problems == {}
    assert "The operator's table of instance types" in found.problem
    assert words in found.problem
    assert len(found.problem) < 300
    assert found.problem.isprintable()
    assert found.remarks(["inf2.xlarge"]) == found.remarks([]) == [found.problem]


def test_a_billion_laughs_are_not_heard() -> None:
    """A short text whose aliases make a huge value is refused before there is one."""
    lines = [b"a0: &a0 [lol]"] + [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 40)]
    assert "aliases" in with_table(PACKAGED, b"\n".join(lines)).problem


_FIELD = st.sampled_from(["kind", "resourceName", "devices", "architecture", "processors", "memoryGiB", "usdPerHour"])
_VALUE = st.sampled_from(["NVIDIA", "CPU", "0", "7", '"1.5"', "arm64", "nvidia.com/gpu", "[]", "{a: b}", "", "*a"])
_ENTRY = st.lists(st.builds("{}: {}".format, _FIELD, _VALUE), max_size=4).map(lambda fields: f"{{{', '.join(fields)}}}")
_NEARLY = st.lists(st.builds("{}: {}".format, st.sampled_from(["inf2.xlarge", "c6i.large", "new.type"]), _ENTRY))


@given(st.one_of(st.binary(), st.text().map(str.encode), _NEARLY.map("\n".join).map(str.encode)))
def test_no_table_does_harm(content: bytes) -> None:
    """Whatever is in it, there is a catalogue with at least the package's types, each of which can be placed."""
    found = with_table(PACKAGED, content)
    assert found.types.keys() >= PACKAGED.types.keys()
    for name in ("inf2.xlarge", "c6i.large", "new.type"):
        if name in found.types:
            kind = found.types[name].kind
            placement = place(Accelerator(name="acc", instance_types=[name]), found, exclusive=True)
            assert (placement.kind, placement.resource is None) == (kind, kind is AcceleratorKind.CPU)
            assert placement.room is None or (placement.room.processors > 0 and placement.room.memory_mebibytes > 0)


def test_what_is_left_of_a_size_is_never_more_than_the_package_says() -> None:
    """For each of its types, whose figures are those of real nodes; processors to within 20 thousandths."""
    text = files("inferbench_operator.models").joinpath("instances.csv").read_text("utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["allocatable_cpu"]]
    table = "\n".join(
        f"{row['instance_type']}: {{processors: {row['vcpu']}, memoryGiB: {row['memory_gib']}}}" for row in rows
    )
    found = _read(table)
    assert found.problems == {}
    for row in rows:
        made = found.types[row["instance_type"]]
        assert made.allocatable_cpu
        assert made.allocatable_memory
        millis = int(row["allocatable_cpu"].removesuffix("m"))
        assert millis - 20 <= int(made.allocatable_cpu.removesuffix("m")) <= millis
        mebibytes = int(row["allocatable_memory"].removesuffix("Mi"))
        assert 0.8 * mebibytes < int(made.allocatable_memory.removesuffix("Mi")) <= mebibytes
