"""MIG slices: the profile names of NVIDIA, and the share of the GPU of each profile."""

from __future__ import annotations

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.catalog_names import instance_type
from autoscaler.performance.mig_profiles import profiles
from autoscaler.performance.packaged_profile import default_profile


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ("A100-SXM-40GB", "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("H100", "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("H200", "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("A30", "1g.6gb 2g.12gb 4g.24gb"),
        ("RTXPRO6000-Blackwell-Server", "1g.24gb 2g.48gb 4g.96gb"),
        ("L40S", ""),
    ],
)
def test_profiles_have_the_names_of_nvidias_guide(gpu: str, names: str) -> None:
    assert " ".join(one.name for one in profiles(catalog.gpu(gpu))) == names


@pytest.mark.parametrize(
    "name", ["H100/3g.40gb", "h100/3g.40gb", "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb", "H100/3g.40gb+me"]
)
def test_a_slice_has_its_share_of_compute_memory_and_bandwidth(name: str) -> None:
    """The profile has 3 of 7 compute slices and 4 of 8 memory slices."""
    whole, found = catalog.gpu("H100"), catalog.gpu(name)
    assert found.name == "H100-SXM/3g.40gb"
    assert found.bf16_tflops == pytest.approx(whole.bf16_tflops * 3 / 7)
    assert found.mem_gb == whole.mem_gb / 2
    assert found.mem_bw_gb_s == whole.mem_bw_gb_s / 2
    assert catalog.gpu(found.name) == found
    assert catalog.short_gpu_name(found.name) == "H100/3g.40gb"


def test_memory_of_a_slice_follows_the_rounding_of_drivers() -> None:
    assert catalog.gpu("B300/3g.135gb").name == "B300-SXM/3g.134gb"


def test_kernels_of_a_slice_are_those_of_its_gpu_and_count_as_uncertain() -> None:
    profile = default_profile()
    whole, found = catalog.gpu("H100"), catalog.gpu("H100/1g.10gb")
    assert profile.kernels(found) == profile.kernels(whole)
    assert not profile.is_measured(found)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("H100/1g.5gb", "H100/1g.10gb, H100/1g.20gb"),
        ("L4/1g.10gb", "L4, which has no MIG slices"),
        ("H9/1g.10gb", "one of"),
    ],
)
def test_a_profile_that_the_gpu_lacks_is_refused(name: str, allowed: str) -> None:
    with pytest.raises(InvalidValue, match=allowed):
        catalog.gpu(name)


@pytest.mark.parametrize(
    ("name", "gpu", "count"),
    [
        ("g7e.24xlarge", "RTXPRO6000-Blackwell-Server", 4),
        ("BM.GPU.A100-v2.8", "A100-SXM-80GB", 8),
        ("VM.GPU.A10.2", "A10", 2),
        ("gpu_4x_h100_sxm5", "H100-SXM", 4),
        ("gd-8xh200ib-i128", "H200-SXM", 8),
    ],
)
def test_instance_types_of_other_clouds_are_known(name: str, gpu: str, count: int) -> None:
    assert catalog.gpu(name).name == gpu
    assert instance_type(name) == (gpu, count)
