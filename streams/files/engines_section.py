"""Read `engines:` of `shoal.yaml`: images and arguments of serving engines."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.engine_arguments import AS_LOADED, EngineMemory, engine_memory
from streams.files import units
from streams.files.keys import Group, Key, Named
from streams.files.name_rules import check_name
from streams.files.units import Parser
from streams.files.yaml_tree import Section
from topics.engine_args import reserved_argument
from topics.engine_profiles import profile_wire_name


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as the operator declares it. memory: effect of the engine's arguments on a model's
    memory.

    pipelines: the nodes that one instance may span, see `Service`. sleep: whether an instance
    sleeps instead of stopping if its node remains.
    """

    name: str
    image: str = ""
    args: tuple[str, ...] = ()
    memory: EngineMemory = AS_LOADED
    max_num_seqs: int = 256
    pipelines: str = "none"
    sleep: bool = False

    @property
    def quantization(self) -> str:
        """Storage type of the weights after loading; "" = the type in the checkpoint."""
        return self.memory.quantization

    @property
    def wire_name(self) -> str:
        """Name of the engine in assignments."""
        return profile_wire_name(self.name, self.image, self.args)


_ARGS = units.list_of(units.text, "[--quantization=fp8]")


def _arguments(value: object) -> tuple[str, ...]:
    args = _ARGS(value)
    owned = reserved_argument(args)
    if owned is not None:
        raise InvalidValue("", owned, "arguments that the executor does not set")
    return args


IMAGE = Key("image", units.text, "Container image of the engine.", otherwise="none")
ARGS = Key(
    "args",
    Parser(_arguments, _ARGS.form, _ARGS.schema),
    "Arguments of the engine. Plans count those that change memory, such as --quantization.",
    otherwise="none",
)
MAX_NUM_SEQS = Key(
    "max_num_seqs", units.count(1, 4096), "Maximum number of requests in a batch.", "256"
)
PIPELINES = Key(
    "pipelines",
    units.word("none", "same-slice", "same-size", "any"),
    "Nodes that one instance may span: nodes with equal slices (`same-slice`), with equally many "
    "GPUs (`same-size`), or any nodes (only simulated engines).",
    "none",
    advanced=True,
)
SLEEP = Key(
    "sleep",
    units.flag,
    "Whether an instance sleeps instead of stopping if its node remains.",
    "false",
)
ENGINE = Group(
    "How models are served.", (IMAGE, ARGS, MAX_NUM_SEQS, PIPELINES, SLEEP)
)  # fmt: skip
ENGINES = Named("Engines by name. `default` exists without a declaration.", ENGINE)


def read_engines(section: Section | None) -> dict[str, EngineSpec]:
    """Engines by name, with `default`. ConfigError names file, line and key."""
    engines = {"default": EngineSpec("default")}
    if section is None:
        return engines
    for name, engine in section.children():
        check_name(section, name)
        args = ARGS.take_or(engine, ())
        engines[name] = EngineSpec(
            name,
            IMAGE.take_or(engine, ""),
            args,
            _memory(engine, args),
            MAX_NUM_SEQS.take(engine),
            PIPELINES.take(engine),
            SLEEP.take(engine),
        )
        ENGINE.finish(engine)
    return engines


def _memory(engine: Section, args: tuple[str, ...]) -> EngineMemory:
    """Effect of vLLM's arguments on a model's memory."""
    try:
        return engine_memory(args)
    except InvalidValue as error:
        raise engine.error(ARGS.name, str(error)) from None
