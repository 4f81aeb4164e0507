"""Machine types of GCP with GPUs: their shapes, and the names of their parts in price lists.

Machine shapes: https://cloud.google.com/compute/docs/gpus.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """Parts of a machine type. family: first word of its core and memory SKUs; "": the price of the
    GPUs includes them.

    gpu: descriptions of its GPU's SKU, which differ between regions. accelerator: the GPU's names
    in SkyPilot's catalogue.
    """

    family: str
    gpu: tuple[str, ...]
    accelerator: tuple[str, ...]
    cores: int
    gib: int
    gpus: int


_A100 = ("Nvidia Tesla A100 GPU",), ("A100",)
_A100_80 = ("Nvidia Tesla A100 80GB GPU",), ("A100-80GB",)
_H100 = ("Nvidia H100 80GB GPU",), ("H100", "H100-80GB")
_MEGA = (
    ("Nvidia H100 80GB Mega GPU", "Nvidia H100 Mega 80GB GPU", "Nvidia H100 80GB Plus GPU"),
    ("H100-MEGA", "H100-MEGA-80GB"),
)
_H200 = ("H200 141GB GPU",), ("H200", "H200-141GB")
_B200 = ("A4 Nvidia B200 (1 gpu slice)",), ("B200",)
_L4 = ("Nvidia L4 GPU",), ("L4",)
MACHINES = {
    **{f"a2-highgpu-{n}g": Machine("A2", *_A100, 12 * n, 85 * n, n) for n in (1, 2, 4, 8)},
    "a2-megagpu-16g": Machine("A2", *_A100, 96, 1360, 16),
    **{f"a2-ultragpu-{n}g": Machine("A2", *_A100_80, 12 * n, 170 * n, n) for n in (1, 2, 4, 8)},
    **{f"a3-highgpu-{n}g": Machine("A3", *_H100, 26 * n, 234 * n, n) for n in (1, 2, 4, 8)},
    "a3-megagpu-8g": Machine("A3Plus", *_MEGA, 208, 1872, 8),
    "a3-ultragpu-8g": Machine("A3Ultra", *_H200, 224, 2952, 8),
    "a4-highgpu-8g": Machine("", *_B200, 224, 3968, 8),
    **{f"g2-standard-{n}": Machine("G2", *_L4, n, 4 * n, 1) for n in (4, 8, 12, 16, 32)},
    **{f"g2-standard-{24 * n}": Machine("G2", *_L4, 24 * n, 96 * n, 2 * n) for n in (1, 2, 4)},
}
