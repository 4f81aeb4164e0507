"""Names under which vLLM serves a model: declared ones, or its own name and that of its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.files.served_names import served_names, unmanaged_names
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def names(folder: Path, **models: str) -> dict[str, tuple[str, ...]]:
    """The result of `served_names` for `models`, which map a model's name to further YAML keys of
    the model."""
    path = folder / "shoal.yaml"
    text = "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\nmodels:\n"
    for name, keys in models.items():
        source = "" if "source" in keys else f"source: {LLAMA}, "
        text += f"  {name}: {{{source}slo: {{ttft: 2s, tpot: 100ms}}{keys}}}\n"
    path.write_text(text)
    return served_names(load_config(path).cluster.services)


def test_without_a_declaration_the_name_and_its_hugging_face_name_are_asked_for(
    tmp_path: Path,
) -> None:
    assert names(tmp_path, mini="") == {"mini": ("mini", LLAMA)}


def test_declared_names_replace_the_others(tmp_path: Path) -> None:
    assert names(tmp_path, mini=", served_as: acme/chat") == {"mini": ("acme/chat",)}
    assert names(tmp_path, mini=', served_as: [/models/llama, "a b"]') == {
        "mini": ("/models/llama", "a b")
    }


def test_no_name_belongs_to_two_models(tmp_path: Path) -> None:
    """Otherwise both models would count the same servers."""
    assert names(tmp_path, a="", b="") == {"a": ("a",), "b": ("b",)}
    assert names(tmp_path, a=f", served_as: {LLAMA}", b="") == {"a": (LLAMA,), "b": ("b",)}
    assert names(tmp_path, a=", served_as: b", b="") == {"a": ("b",), "b": (LLAMA,)}
    with pytest.raises(UserError, match=r"models\.b\.served_as: 'x' is not allowed; allowed: nam"):
        names(tmp_path, a=", served_as: [x, y]", b=", served_as: x")


@pytest.mark.parametrize("value", ["3", "[]", "[a, a]", "''", "[a, 3]", '"a\\nb"', "a" * 201])
def test_a_value_that_is_no_name_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"models\.m\.served_as: .* allowed: one name or a list"):
        names(tmp_path, m=f", served_as: {value}")


def test_only_models_that_declare_such_servers_are_counted(tmp_path: Path) -> None:
    names(tmp_path, a=", unmanaged: {pool: us/l4/on-demand}, served_as: x", b="")
    services = load_config(tmp_path / "shoal.yaml").cluster.services
    assert unmanaged_names(services) == {"a": ("a:a1@us/l4/on-demand", ("x",))}


def test_models_with_other_labels_may_share_a_name(tmp_path: Path) -> None:
    """Staging and production serve the same name in one Prometheus."""
    path = tmp_path / "shoal.yaml"
    one = "source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}, served_as: x"
    text = (
        "prometheus: {main: {url: 'http://p:9090', labels: {cluster: [eu, us]}}}\n"
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        f"models:\n  a: {{{one}, metric_labels: {{namespace: prod}}}}\n"
        f"  b: {{{one}, metric_labels: {{namespace: staging}}}}\n"
    )
    path.write_text(text)
    config = load_config(path)
    assert served_names(config.cluster.services) == {"a": ("x",), "b": ("x",)}
    assert config.cluster.service("a").metric_labels == (("namespace", ("prod",)),)
    assert config.prometheus["main"].labels == (("cluster", ("eu", "us")),)
    path.write_text(text.replace("staging", "prod"))
    with pytest.raises(UserError, match="names that a does not declare, or other metric_labels"):
        load_config(path)
    for bad in ("{namespace: []}", "{a-b: x}", "{__name__: x}", "{namespace: {}}"):
        path.write_text(text.replace("{namespace: prod}", bad))
        with pytest.raises(UserError, match="metric_labels"):
            load_config(path)
