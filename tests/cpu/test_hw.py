"""Proves the device table: targets, limits in range, and what is measured or modelled."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernelgen.core.errors import UnsupportedError
from kernelgen.hw import Device, default_note, device_of_driver_name, devices, parse_target

SMS = ["cpu", "sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("sm_90", "sm_90:h200"),
        ("sm_90:h100", "sm_90:h100"),
        (" SM_80 ", "sm_80:a100"),
        ("sm_100", "sm_100:b200"),
        ("cpu", "cpu"),
    ],
)
def test_targets_name_a_device(text: str, target: str) -> None:
    device = parse_target(text)
    assert device.target == target
    assert parse_target(device.target) is device


@pytest.mark.parametrize("text", ["sm_91", "", "sm90", "rocm", "sm_90:", "sm_90:b200", "cpu:'\n"])
def test_unknown_targets_list_what_exists(text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_target(text)
    assert caught.value.exit_code == 3
    assert "allowed:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_sm_has_a_default_and_devices_are_unique() -> None:
    assert list(dict.fromkeys(d.sm_name for d in devices())) == SMS
    assert len({d.target for d in devices()}) == len(devices())
    names = [name.lower() for d in devices() for name in d.driver_names]
    assert len(set(names)) == len(names)


def test_a_default_device_is_said() -> None:
    assert "sm_90:h200" in default_note("sm_90")
    assert default_note("sm_90:h200") == ""
    assert default_note("cpu") == ""


def test_h200_figures_are_the_measured_ones() -> None:
    h200 = parse_target("sm_90:h200")
    assert (h200.read_gb_s, h200.copy_gb_s) == (4590, 4230)
    assert h200.tflops_for("bfloat16") == 788
    assert (h200.boundary_us, h200.boundary_plain_us) == (1.2, 2.7)
    assert "read_gb_s" not in h200.modelled
    assert "launch_us" not in h200.modelled


def test_figures_that_nobody_measured_are_flagged_and_below_the_data_sheet() -> None:
    for device in devices():
        if device.name == "h200":
            continue
        assert {"read_gb_s", "copy_gb_s", "launch_us"} <= set(device.modelled)
        assert device.read_gb_s < device.spec_gb_s
        for rate in device.rates:
            assert rate.measured_tflops is None
            assert rate.tflops < rate.spec_tflops


@pytest.mark.parametrize("device", devices(), ids=lambda d: d.target)
def test_limits_are_sane(device: Device) -> None:
    assert device.shared_per_block_bytes <= device.shared_per_unit_bytes
    assert device.boundary_us <= device.boundary_plain_us
    assert device.has("pdl") == (device.boundary_us < device.boundary_plain_us)
    assert {"bfloat16", "float32"} <= {rate.dtype for rate in device.rates}
    assert device.memory_bytes > 100 * device.l2_bytes
    if not device.is_cpu:
        assert 1024 <= device.shared_per_unit_bytes - device.shared_per_block_bytes < 2048
        # code of the "a" flavour runs on exactly one SM; older ones are compatible upwards
        assert device.arch == f"sm_{device.sm}" + ("a" if device.sm >= 90 else "")


def test_maths_that_a_device_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="float8_e4m3"):
        parse_target("sm_80").tflops_for("float8_e4m3")


def test_driver_names_are_recognised() -> None:
    found = device_of_driver_name("nvidia h200 ")
    assert found is parse_target("sm_90")
    assert device_of_driver_name("NVIDIA H200 NVL 2") is None


def test_reading_a_target_imports_nothing_heavy() -> None:
    code = "import sys, kernelgen.hw; print({'torch', 'triton', 'numpy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
