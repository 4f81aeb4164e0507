"""Match names to entries of the catalogue: variants of models, product names of GPUs, instance
types.

Callers show each match to the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

# Words that publishers add to an architecture's name, for tuning, dates and weight formats.
_TUNING = frozenset({
    "instruct", "chat", "base", "hf", "it", "pt", "sft", "dpo", "rl", "thinking", "reasoning",
    "preview", "latest", "uncensored", "abliterated", "dynamic", "static", "pertensor", "kv",
    "block", "gguf", "bnb", "quantized", "online", "evals",
})  # fmt: skip
_STORAGE = {
    "fp8": "fp8", "nvfp4": "fp4", "fp4": "fp4", "awq": "int4", "gptq": "int4", "int4": "int4",
    "4bit": "int4", "w4a16": "int4", "autoround": "int4", "int8": "int8", "8bit": "int8",
    "w8a8": "int8", "w8a16": "int8", "quantized.w8a8": "int8", "quantized.w8a16": "int8",
    "quantized.w4a16": "int4", "mxfp4": "mxfp4", "mxfp8": "fp8",
}  # fmt: skip
_STORAGE_UNCHANGED = frozenset(["bf16", "fp16"])
_FILES = frozenset(["gguf", "exl2", "exl3", "mlx", "eetq", "aqlm"])
_WHOLE = frozenset(["bnb", "bitsandbytes"])
_INTEGER_ACTIVATIONS = frozenset(["w8a8", "quantized.w8a8"])
# Publishers whose FP8 has one scale per row or matrix. FP8 of others has blocks of 128 x 128.
_ROW_SCALES = frozenset(["nvidia", "redhatai", "neuralmagic", "amd"])
_BLOCKS = {"fp8": 128, "int4": 128, "fp4": 16, "mxfp4": 1, "int8": 1}
_SKILLS = frozenset(["math", "coder", "code"])
_POOLING = frozenset({
    "embed", "embedding", "embeddings", "embedder", "rerank", "reranker", "reward", "rm", "prm",
    "orm", "classifier", "retriever", "gte", "e5",
})  # fmt: skip
_DATE = re.compile(r"\d{4}\Z")
_SIZE = re.compile(r"a?\d+(\.\d+)?[bm]\Z|\d+x\d+b\Z|\d+e\Z")
_SPLIT = re.compile(r"[-_ ]+")
_MAKERS = ("nvidia ", "tesla ", "geforce ", "amd ", "instinct ", "graphics ", "quadro ")
_SHARED = (" shared", " replicas")
"""Endings that NVIDIA's device plugin adds to a GPU whose time is shared."""

GPU_PRODUCTS = {
    "h100 80gb hbm3": "H100-SXM", "h100 sxm5": "H100-SXM", "h100 pcie": "H100-PCIe",
    "h100 80gb": "H100-SXM", "h100 nvl": "H100-NVL", "h100 mega 80gb": "H100-SXM",
    "h200": "H200-SXM", "h200 141gb": "H200-SXM", "h200 nvl": "H200-NVL", "h20": "H20",
    "h800": "H800-SXM", "gh200 96gb": "GH200-96GB", "gh200 480gb": "GH200-96GB",
    "a100 sxm4 80gb": "A100-SXM-80GB", "a100 sxm4 40gb": "A100-SXM-40GB",
    "a100 80gb": "A100-SXM-80GB", "a100 40gb": "A100-SXM-40GB",
    "a100 pcie 80gb": "A100-PCIe-80GB", "a100 80gb pcie": "A100-PCIe-80GB",
    "a100 pcie 40gb": "A100-PCIe-40GB", "a800 sxm4 80gb": "A800-SXM-80GB",
    "a800 80gb pcie": "A800-PCIe-80GB", "b200": "B200-SXM", "b200 180gb": "B200-SXM",
    "b300": "B300-SXM", "gb200": "GB200", "gb300": "GB300",
    "b300 sxm6 ac": "B300-SXM", "b300 sxm6": "B300-SXM", "b200 sxm6": "B200-SXM",
    "h20 3e": "H20-3e", "h100": "H100-SXM", "l20": "L20",
    "l4": "L4", "l40": "L40", "l40s": "L40S", "a10": "A10", "a10g": "A10G", "a30": "A30",
    "a40": "A40", "rtx a6000": "A6000", "rtx a5000": "A5000", "t4": "T4",
    "rtx 6000 ada generation": "RTX6000-Ada", "rtx 3090": "RTX3090", "rtx 4090": "RTX4090",
    "rtx 5090": "RTX5090",
    "rtx pro 6000 blackwell server edition": "RTXPRO6000-Blackwell-Server",
    "rtx pro 6000 blackwell workstation edition": "RTXPRO6000-Blackwell-Workstation",
    "rtx pro 6000 blackwell workstation": "RTXPRO6000-Blackwell-Workstation",
    "rtx pro 6000 blackwell": "RTXPRO6000-Blackwell-Workstation",
    "rtx pro 6000 workstation": "RTXPRO6000-Blackwell-Workstation",
    "rtx pro 6000 workstation edition": "RTXPRO6000-Blackwell-Workstation",
    "rtx pro 6000 server edition": "RTXPRO6000-Blackwell-Server",
    "rtx pro 6000": "RTXPRO6000-Blackwell-Server",
    "v100 sxm2 16gb": "V100-SXM2-16GB", "v100 sxm2 32gb": "V100-SXM2-32GB",
    "v100 pcie 16gb": "V100-PCIe-16GB", "v100": "V100-SXM2-16GB",
    "mi210": "MI210", "mi250x": "MI250X", "mi300x": "MI300X", "mi300x oam": "MI300X",
    "mi325x": "MI325X", "mi350x": "MI350X", "mi355x": "MI355X", "mi300x vf": "MI300X",
    "gh200 144g hbm3e": "GH200-144GB", "gh200 144gb": "GH200-144GB", "gh200": "GH200-96GB",
    "h100 80gb hbm3e": "H100-SXM", "h100 80gb hbm2e": "H100-PCIe", "h100 nvlink 80gb": "H100-SXM",
    "h100 sxm5 80gb": "H100-SXM", "h100 sxm": "H100-SXM", "h100 sxm 80gb": "H100-SXM",
    "h100 80gb sxm": "H100-SXM", "h100 80gb sxm5": "H100-SXM", "h100 pcie 80gb": "H100-PCIe",
    "h100 mega": "H100-SXM", "h200 sxm": "H200-SXM", "h200 sxm5": "H200-SXM",
    "h200 sxm 141gb": "H200-SXM", "h200 141gb sxm": "H200-SXM", "b200 sxm": "B200-SXM",
    "b200 192gb": "B200-SXM", "b200 180gb sxm": "B200-SXM", "b300 288gb": "B300-SXM",
    "b300 sxm": "B300-SXM", "gb200 nvl72": "GB200", "gb300 nvl72": "GB300",
    "h800 sxm5": "H800-SXM", "h800 80gb hbm3": "H800-SXM", "h20 141gb": "H20-3e",
    "nvidia tesla a100": "A100-SXM-40GB", "a100 40gb sxm": "A100-SXM-40GB",
    "a100 80gb sxm": "A100-SXM-80GB",
    "a100 sxm 80gb": "A100-SXM-80GB", "a100 sxm 40gb": "A100-SXM-40GB",
    "a100 80gb sxm4": "A100-SXM-80GB", "a800 sxm4 40gb": "A800-SXM-40GB",
    "v100 pcie 32gb": "V100-PCIe-32GB", "v100 sxm3 32gb": "V100-SXM2-32GB",
    "v100s pcie 32gb": "V100-PCIe-32GB", "v100 32gb": "V100-SXM2-32GB",
    "a2": "A2", "a16": "A16", "rtx a4000": "A4000", "rtx a4500": "A4500",
    "rtx 6000 ada": "RTX6000-Ada", "rtx 5000 ada generation": "RTX5000-Ada",
    "rtx 5000 ada": "RTX5000-Ada", "rtx 4000 ada generation": "RTX4000-Ada",
    "rtx 4000 ada": "RTX4000-Ada", "rtx 3090 ti": "RTX3090Ti", "rtx 4090 d": "RTX4090D",
    "rtx pro 6000 blackwell max q workstation edition": "RTXPRO6000-Blackwell-MaxQ",
    "rtx pro 6000 max q": "RTXPRO6000-Blackwell-MaxQ", "rtxpro6000": "RTXPRO6000-Blackwell-Server",
    "rtx pro 5000 blackwell": "RTXPRO5000-Blackwell",
    "rtx pro 4500 blackwell": "RTXPRO4500-Blackwell", "mi300x 192gb": "MI300X",
    "mi325x 256gb": "MI325X", "mi355x 288gb": "MI355X", "mi250x/mi250": "MI250X",
    "mi250": "MI250X", "mi300x hf": "MI300X", "l40s 48gb": "L40S",
    "mi325x oam": "MI325X", "mi350x oam": "MI350X", "mi355x oam": "MI355X",
}  # fmt: skip
"""Full GPU name by the name that drivers, device plugins and clouds print, in lower case without
the maker."""

_INSTANCES: dict[str, tuple[str, int]] = {
    "p3.2xlarge": ("V100-SXM2-16GB", 1), "p3.8xlarge": ("V100-SXM2-16GB", 4),
    "p3.16xlarge": ("V100-SXM2-16GB", 8), "p3dn.24xlarge": ("V100-SXM2-32GB", 8),
    "p4d.24xlarge": ("A100-SXM-40GB", 8), "p4de.24xlarge": ("A100-SXM-80GB", 8),
    "p5.4xlarge": ("H100-SXM", 1), "p5.48xlarge": ("H100-SXM", 8),
    "p5e.48xlarge": ("H200-SXM", 8), "p5en.48xlarge": ("H200-SXM", 8),
    "p6-b200.48xlarge": ("B200-SXM", 8), "p6-b300.48xlarge": ("B300-SXM", 8),
    "g4dn.12xlarge": ("T4", 4), "g4dn.metal": ("T4", 8),
    "g5.12xlarge": ("A10G", 4), "g5.24xlarge": ("A10G", 4), "g5.48xlarge": ("A10G", 8),
    "g6.12xlarge": ("L4", 4), "g6.24xlarge": ("L4", 4), "g6.48xlarge": ("L4", 8),
    "g6e.12xlarge": ("L40S", 4), "g6e.24xlarge": ("L40S", 4), "g6e.48xlarge": ("L40S", 8),
    "g7e.12xlarge": ("RTXPRO6000-Blackwell-Server", 2),
    "g7e.24xlarge": ("RTXPRO6000-Blackwell-Server", 4),
    "g7e.48xlarge": ("RTXPRO6000-Blackwell-Server", 8),
    # OCI shapes
    "vm.gpu3.1": ("V100-SXM2-16GB", 1), "vm.gpu3.2": ("V100-SXM2-16GB", 2),
    "vm.gpu3.4": ("V100-SXM2-16GB", 4), "bm.gpu3.8": ("V100-SXM2-16GB", 8),
    "vm.gpu.a10.1": ("A10", 1), "vm.gpu.a10.2": ("A10", 2), "bm.gpu.a10.4": ("A10", 4),
    "bm.gpu4.8": ("A100-SXM-40GB", 8), "bm.gpu.a100-v2.8": ("A100-SXM-80GB", 8),
    "bm.gpu.l40s.4": ("L40S", 4), "bm.gpu.h100.8": ("H100-SXM", 8),
    "bm.gpu.h200.8": ("H200-SXM", 8), "bm.gpu.b200.8": ("B200-SXM", 8),
    "bm.gpu.b300.8": ("B300-SXM", 8), "bm.gpu.gb200.4": ("GB200", 4),
    "bm.gpu.mi300x.8": ("MI300X", 8), "bm.gpu.mi355x.8": ("MI355X", 8),
    # Lambda
    "gpu_1x_a10": ("A10", 1), "gpu_1x_a6000": ("A6000", 1), "gpu_2x_a6000": ("A6000", 2),
    "gpu_4x_a6000": ("A6000", 4), "gpu_1x_a100": ("A100-PCIe-40GB", 1),
    "gpu_2x_a100": ("A100-PCIe-40GB", 2), "gpu_4x_a100": ("A100-PCIe-40GB", 4),
    "gpu_1x_a100_sxm4": ("A100-SXM-40GB", 1), "gpu_8x_a100": ("A100-SXM-40GB", 8),
    "gpu_8x_a100_80gb_sxm4": ("A100-SXM-80GB", 8), "gpu_8x_v100": ("V100-SXM2-16GB", 8),
    "gpu_1x_h100_pcie": ("H100-PCIe", 1), "gpu_1x_gh200": ("GH200-96GB", 1),
    # CoreWeave
    "gd-8xh100ib-i128": ("H100-SXM", 8), "gd-8xh200ib-i128": ("H200-SXM", 8),
    "gd-8xa100-i128": ("A100-SXM-80GB", 8),
    # Nebius, Crusoe, DigitalOcean, Scaleway
    "gpu-h100-sxm": ("H100-SXM", 8), "gpu-h200-sxm": ("H200-SXM", 8),
    "gpu-b200-sxm": ("B200-SXM", 8), "gpu-l40s-a": ("L40S", 1), "gpu-l40s-d": ("L40S", 1),
    "h100-80gb-sxm-ib.8x": ("H100-SXM", 8), "h200-141gb-sxm-ib.8x": ("H200-SXM", 8),
    "b200-180gb-sxm-ib.8x": ("B200-SXM", 8), "mi300x-192gb-ib.8x": ("MI300X", 8),
    "mi355x-288gb-roce.8x": ("MI355X", 8), "gpu-h100x1-80gb": ("H100-SXM", 1),
    "gpu-h100x8-640gb": ("H100-SXM", 8), "gpu-h200x1-141gb": ("H200-SXM", 1),
    "gpu-h200x8-1128gb": ("H200-SXM", 8), "gpu-mi300x1-192gb": ("MI300X", 1),
    "gpu-mi300x8-1536gb": ("MI300X", 8), "gpu-mi325x1-256gb": ("MI325X", 1),
    "gpu-mi325x8-2048gb": ("MI325X", 8), "gpu-l40sx1-48gb": ("L40S", 1),
    "gpu-6000adax1-48gb": ("RTX6000-Ada", 1), "gpu-4000adax1-20gb": ("RTX4000-Ada", 1),
    "h100-1-80g": ("H100-PCIe", 1), "h100-2-80g": ("H100-PCIe", 2), "l4-1-24g": ("L4", 1),
    "l4-2-24g": ("L4", 2), "l40s-1-48g": ("L40S", 1), "l40s-2-48g": ("L40S", 2),
    "standard_nd128is_ndr_gb200_v6": ("GB200", 4), "gd-8xl40s-i128": ("L40S", 8),
    "gd-8xl40-i128": ("L40", 8), "gd-1xgh200": ("GH200-96GB", 1), "b200-8x": ("B200-SXM", 8),
    "b300-8x": ("B300-SXM", 8), "gb200-4x": ("GB200", 4), "gb300-4x": ("GB300", 4),
    "rtxp6000-8x": ("RTXPRO6000-Blackwell-Server", 8),
    "a2-megagpu-16g": ("A100-SXM-40GB", 16), "a3-megagpu-8g": ("H100-SXM", 8),
    "a3-edgegpu-8g": ("H100-SXM", 8), "a3-ultragpu-8g": ("H200-SXM", 8),
    "a4-highgpu-8g": ("B200-SXM", 8), "a4x-highgpu-4g": ("GB200", 4),
    "a4x-maxgpu-4g-metal": ("GB300", 4), "p6e-gb200.36xlarge": ("GB200", 4),
    "p6e-gb300.36xlarge": ("GB300", 4), "g4-standard-48": ("RTXPRO6000-Blackwell-Server", 1),
    "g4-standard-96": ("RTXPRO6000-Blackwell-Server", 2),
    "g4-standard-192": ("RTXPRO6000-Blackwell-Server", 4),
    "g4-standard-384": ("RTXPRO6000-Blackwell-Server", 8),
    "standard_nd96isr_mi300x_v5": ("MI300X", 8), "standard_nd96is_mi300x_v5": ("MI300X", 8),
    "standard_nd128isr_ndr_gb200_v6": ("GB200", 4), "standard_nd128isr_gb300_v6": ("GB300", 4),
    "standard_nv36ads_a10_v5": ("A10", 1), "standard_nv36adms_a10_v5": ("A10", 1),
    "standard_nv72ads_a10_v5": ("A10", 2), "standard_nc4as_t4_v3": ("T4", 1),
    "standard_nc8as_t4_v3": ("T4", 1), "standard_nc16as_t4_v3": ("T4", 1),
    "standard_nc64as_t4_v3": ("T4", 4), "g2-standard-24": ("L4", 2), "g2-standard-48": ("L4", 4),
    "g2-standard-96": ("L4", 8),
    "standard_nd96isr_h100_v5": ("H100-SXM", 8), "standard_nd96isr_h200_v5": ("H200-SXM", 8),
    "standard_nd96amsr_a100_v4": ("A100-SXM-80GB", 8),
    "standard_nd96asr_v4": ("A100-SXM-40GB", 8), "standard_nc40ads_h100_v5": ("H100-NVL", 1),
    "standard_nc80adis_h100_v5": ("H100-NVL", 2), "standard_nc24ads_a100_v4": ("A100-PCIe-80GB", 1),
    "standard_nc48ads_a100_v4": ("A100-PCIe-80GB", 2),
    "standard_nc96ads_a100_v4": ("A100-PCIe-80GB", 4),
}  # fmt: skip
for _family, _gpu, _sizes in (
    ("g4dn", "T4", ("", "2", "4", "8", "16")),
    ("g5", "A10G", ("", "2", "4", "8", "16")),
    ("g6", "L4", ("", "2", "4", "8", "16")),
    ("g6e", "L40S", ("", "2", "4", "8", "16")),
    ("gr6", "L4", ("4", "8")),
    ("g7e", "RTXPRO6000-Blackwell-Server", ("2", "4", "8")),
):
    _INSTANCES.update({f"{_family}.{size}xlarge": (_gpu, 1) for size in _sizes})
for _n in (1, 2, 4, 8):
    _INSTANCES[f"a2-highgpu-{_n}g"] = ("A100-SXM-40GB", _n)
    _INSTANCES[f"a2-ultragpu-{_n}g"] = ("A100-SXM-80GB", _n)
    _INSTANCES[f"a3-highgpu-{_n}g"] = ("H100-SXM", _n)
    _INSTANCES[f"gpu_{_n}x_h100_sxm5"] = ("H100-SXM", _n)
    _INSTANCES[f"gpu_{_n}x_b200_sxm6"] = ("B200-SXM", _n)
for _n in (4, 8, 12, 16, 32):
    _INSTANCES[f"g2-standard-{_n}"] = ("L4", 1)


def instance_type(name: str) -> tuple[str, int] | None:
    """Type and number of the GPUs of a cloud's instance type; None for an unknown type."""
    return _INSTANCES.get(name.lower())


def gpu_product(name: str) -> str | None:
    """Full name of the GPU that a driver or a cloud calls `name`; None if it is unknown."""
    plain = _SPLIT.sub(" ", name.lower()).strip()
    if plain in GPU_PRODUCTS:
        return GPU_PRODUCTS[plain]
    for maker in _MAKERS:
        plain = plain.removeprefix(maker)
    for ending in _SHARED:
        plain = plain.removesuffix(ending)
    return GPU_PRODUCTS.get(plain)


def variant_of(name: str, known: Iterable[str]) -> str | None:
    """The entry of `known` of which `name` is a variant or fine-tune; None without a certain match.

    The function tries, in this order: `name` without words for tuning and storage; also without
    dates; also without words for a skill; an entry whose name is part of `name`, including every
    size in `name`.
    """
    entries = _entries(tuple(known))
    tokens = _tokens(name)
    for drop in (_plain, _undated, _unskilled):
        wanted = drop(tokens)
        found = [full for full, own in entries if drop(own) == wanted]
        if found:
            return min(found, key=len)
    sizes = {token for token in tokens if _SIZE.match(token)}
    inside = [
        (len(core), full)
        for full, own in entries
        for core in (_plain(own),)
        if sizes and sizes <= set(core) and _is_part_of(core, tokens)
    ]
    return max(inside)[1] if inside else None


def states_pooling(name: str) -> bool:
    """Whether `name` states an embedding, reranking, classifying or reward model."""
    return not _POOLING.isdisjoint(_tokens(name))


def is_published(name: str, entry: str) -> bool:
    """Whether `name` differs from `entry` only by words that publishers add (tuning, storage,
    dates). A misspelt name differs in other words, so the result is False."""
    return _undated(_tokens(name)) == _undated(_tokens(entry))


def storage_of(name: str) -> str:
    """Weight format that a variant's name states: "fp8", "fp4", "int8", "int4", "mxfp4" or ""."""
    found = [_STORAGE[token] for token in _tokens(name) if token in _STORAGE]
    return "fp8" if "fp8" in found else found[0] if found else ""


def unloadable_format(name: str) -> str:
    """The word in `name` for a weight format that vLLM does not load, or whose bits the name does
    not state; "" if there is none."""
    return next((token for token in _tokens(name) if token in _FILES), "")


def block_size_of(name: str, stored: str) -> int:
    """Number of weights per block or group of a variant in format `stored`. The name does not state
    it, so the result is the largest possible size."""
    publisher = name.partition("/")[0].lower()
    if stored == "fp8" and (publisher in _ROW_SCALES or "dynamic" in _tokens(name)):
        return 1 if "block" not in _tokens(name) else _BLOCKS["fp8"]
    return _BLOCKS.get(stored, 1)


def is_undivided(name: str) -> bool:
    """Whether the name of a variant states a format that tensor parallelism cannot divide."""
    return any(token in _WHOLE for token in _tokens(name))


def has_integer_activations(name: str) -> bool:
    """Whether the name of a variant states that matrix products are computed in INT8."""
    tokens = _tokens(name)
    return any(token in _INTEGER_ACTIVATIONS for token in tokens) and storage_of(name) == "int8"


@lru_cache(maxsize=4)
def _entries(known: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((full, _tokens(full)) for full in known)


def _tokens(name: str) -> tuple[str, ...]:
    """The words of a name without its organisation, e.g. of "llama-3.1-8b". Case and separators do
    not matter."""
    last = name.rpartition("/")[2].lower().replace("llama2", "llama-2").replace("3_3", "3.3")
    last = last.removeprefix("meta-")
    return tuple(token for token in _SPLIT.split(last) if token)


def _plain(tokens: tuple[str, ...]) -> tuple[str, ...]:
    dropped = _TUNING | _STORAGE_UNCHANGED
    return tuple(t for t in tokens if t not in dropped and t not in _STORAGE)


def _undated(tokens: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(token for token in _plain(tokens) if not _DATE.match(token))


def _unskilled(tokens: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(token for token in _undated(tokens) if token not in _SKILLS)


def _is_part_of(core: tuple[str, ...], tokens: tuple[str, ...]) -> bool:
    length = len(core)
    return any(tokens[i : i + length] == core for i in range(len(tokens) - length + 1))
