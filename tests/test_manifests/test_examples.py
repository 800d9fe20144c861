"""The examples in `crds/examples/`, as files: small, valid, and about hardware that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from inferbench_operator.models.base import API_VERSION
from inferbench_operator.models.benchmark import BenchmarkSpec
from inferbench_operator.models.instances import packaged_catalogue
from inferbench_runner.contract import Profile


def document(path: Path) -> dict[str, Any]:
    """The one object in a file."""
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def test_example_is_a_benchmark(example: Path) -> None:
    """Each example is one benchmark, called like its file unless it is the shortest, and parses."""
    found = document(example)
    assert (found["apiVersion"], found["kind"]) == (API_VERSION, "InferenceBenchmark")
    assert found["metadata"]["name"] in {example.stem, "bert-base"}
    BenchmarkSpec.model_validate(found["spec"])


def test_example_has_no_unknown_field(example: Path) -> None:
    """What the model reads is all that is written: a misspelt field would be missing."""
    written = document(example)["spec"]
    read = BenchmarkSpec.model_validate(written).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read == written


def test_example_names_known_hardware(example: Path) -> None:
    """Each accelerator is in the catalogue or says its kind."""
    for accelerator in BenchmarkSpec.model_validate(document(example)["spec"]).accelerators:
        assert accelerator.kind or set(accelerator.instance_types) <= packaged_catalogue().types.keys()


def test_minimal_example_has_ten_lines(crds_folder: Path) -> None:
    """A useful benchmark fits into ten lines."""
    assert len((crds_folder / "examples" / "minimal.yaml").read_text("utf-8").splitlines()) <= 10


def test_published_study_has_its_143_figures(crds_folder: Path) -> None:
    """Five encoders at seven lengths and one vision model, on four platforms, without the cell that has no figure."""
    spec = BenchmarkSpec.model_validate(document(crds_folder / "examples" / "published-study.yaml")["spec"])
    vision = [model for model in spec.models if model.task == "image-classification"]
    lengths = len(spec.sequence_lengths)
    cells = ((len(spec.models) - len(vision)) * lengths + len(vision)) * len(spec.accelerators)
    assert cells - len(spec.exclude) == (5 * 7 + 1) * 4 - 1


def test_the_study_is_measured_soundly_and_its_own_method_is_there_as_well(crds_folder: Path) -> None:
    """So that its figures can be checked, and compared with those of the method that produced them."""
    profiles = {
        name: BenchmarkSpec.model_validate(
            document(crds_folder / "examples" / f"{name}.yaml")["spec"]
        ).measurement.profile
        for name in ("published-study", "published-method")
    }
    assert profiles == {"published-study": Profile.SOUND, "published-method": Profile.LEGACY_2023}
