"""AcceleratorState: precision, plugins, device mesh."""

from __future__ import annotations

import accelerate.utils
import pytest
import torch

from nbstate import (
    AcceleratorState,
    DeepSpeedPlugin,
    DistributedType,
    FullyShardedDataParallelPlugin,
    GradientState,
    MegatronLMPlugin,
    ParallelismConfig,
    PartialState,
    TorchDynamoPlugin,
    TorchTensorParallelPlugin,
    debug_launcher,
)


def test_it_tells_everything_that_partial_state_tells():
    state, partial = AcceleratorState(), PartialState()

    for name in (
        "device", "distributed_type", "backend", "num_processes", "process_index",
        "local_process_index", "is_main_process", "is_local_main_process", "is_last_process",
        "use_distributed", "mixed_precision", "debug", "fork_launched", "default_device",
    ):  # fmt: skip
        assert getattr(state, name) == getattr(partial, name)
    state.debug = True
    assert partial.debug is True
    with state.split_between_processes([1]) as part, state.main_process_first():
        assert partial.gather_in_order(part) == [1]


def test_precision_is_the_argument_then_the_launchers_then_no(monkeypatch):
    assert AcceleratorState().mixed_precision == "no"
    AcceleratorState.reset()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert AcceleratorState().mixed_precision == "fp16"
    AcceleratorState.reset()
    assert AcceleratorState(mixed_precision="BF16").mixed_precision == "bf16"


def test_an_unknown_precision_names_the_choices():
    with pytest.raises(ValueError, match=r"'fp32' .* 'no', 'fp16', 'bf16', 'fp8'"):
        AcceleratorState(mixed_precision="fp32")
    assert not AcceleratorState.is_initialized()


def test_fp8_on_a_cpu_becomes_bf16_with_a_warning():
    with pytest.warns(UserWarning, match=r"'fp8' .* using 'bf16'"):
        state = AcceleratorState(mixed_precision="fp8")
    assert state.mixed_precision == "bf16"
    assert AcceleratorState(mixed_precision="fp8").mixed_precision == "bf16"
    assert AcceleratorState(mixed_precision="bf16").mixed_precision == "bf16"


def test_a_second_wish_that_differs_shows_old_and_new():
    AcceleratorState(mixed_precision="bf16", fsdp_plugin=FullyShardedDataParallelPlugin())

    AcceleratorState(fsdp_plugin=FullyShardedDataParallelPlugin())
    with pytest.raises(ValueError, match=r"mixed_precision='bf16', and mixed_precision='fp16'"):
        AcceleratorState(mixed_precision="fp16")
    with pytest.raises(ValueError, match=r"AcceleratorState.reset\(\)"):
        AcceleratorState(torch_tp_plugin=TorchTensorParallelPlugin())
    with pytest.raises(ValueError, match=r"cpu_offload=False.*cpu_offload=True"):
        AcceleratorState(fsdp_plugin=FullyShardedDataParallelPlugin(cpu_offload=True))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"fsdp_plugin": FullyShardedDataParallelPlugin()}, DistributedType.FSDP),
        ({"torch_tp_plugin": TorchTensorParallelPlugin()}, DistributedType.TP),
        ({"deepspeed_plugin": DeepSpeedPlugin()}, DistributedType.DEEPSPEED),
        ({"megatron_lm_plugin": MegatronLMPlugin()}, DistributedType.MEGATRON_LM),
        (
            {
                "fsdp_plugin": FullyShardedDataParallelPlugin(),
                "torch_tp_plugin": TorchTensorParallelPlugin(),
            },
            DistributedType.FSDP,
        ),
        ({"dynamo_plugin": TorchDynamoPlugin()}, DistributedType.NO),
    ],
)
def test_the_plugin_decides_the_type_and_both_states_agree(given, expected):
    partial = PartialState()

    state = AcceleratorState(**given)

    assert state.distributed_type is partial.distributed_type is expected
    assert state.is_fsdp2 is (expected is DistributedType.FSDP)
    for name, plugin in given.items():
        assert getattr(state, name) is plugin
    AcceleratorState._reset_state()
    assert partial.distributed_type is DistributedType.NO


def test_two_engines_are_refused():
    with pytest.raises(ValueError, match="deepspeed_plugins and fsdp_plugin"):
        AcceleratorState(
            deepspeed_plugin=DeepSpeedPlugin(), fsdp_plugin=FullyShardedDataParallelPlugin()
        )


def test_with_megatron_the_main_process_is_the_last():
    def roles():
        state = AcceleratorState(megatron_lm_plugin=MegatronLMPlugin())
        return state.is_main_process, state.is_local_main_process, PartialState().is_main_process

    assert list(debug_launcher(roles)) == [(False,) * 3, (True,) * 3]


def test_of_several_deepspeed_plugins_one_is_active():
    student, teacher = DeepSpeedPlugin(zero_stage=2), DeepSpeedPlugin(zero_stage=3)
    state = AcceleratorState(deepspeed_plugin={"student": student, "teacher": teacher})

    assert state.deepspeed_plugin is student
    assert state.get_deepspeed_plugin("teacher") is teacher
    state.select_deepspeed_plugin("teacher")
    assert AcceleratorState().deepspeed_plugin is teacher
    with pytest.raises(ValueError, match="'critic'; there are 'student', 'teacher'"):
        state.select_deepspeed_plugin("critic")
    assert state.deepspeed_plugin is teacher


def test_without_deepspeed_there_is_no_plugin():
    state = AcceleratorState()

    assert state.deepspeed_plugin is None
    with pytest.raises(ValueError, match="there are none at all"):
        state.get_deepspeed_plugin("any")


def test_something_else_in_a_plugins_place():
    with pytest.raises(TypeError, match="fsdp_plugin must be a FullyShardedDataParallelPlugin"):
        AcceleratorState(fsdp_plugin=TorchTensorParallelPlugin())


def test_plugins_of_accelerate_are_taken():
    theirs = accelerate.utils.TorchDynamoPlugin(backend="aot_eager")

    state = AcceleratorState(dynamo_plugin=theirs)

    assert state.dynamo_plugin == TorchDynamoPlugin(backend="aot_eager")


@pytest.mark.parametrize(
    ("sizes", "world_size", "names", "shape", "kind"),
    [
        ({"dp_shard_size": 2}, 2, ("dp_shard",), (2,), DistributedType.FSDP),
        ({"tp_size": 2}, 2, ("tp",), (2,), DistributedType.TP),
        ({"dp_replicate_size": 2}, 2, ("dp_replicate",), (2,), DistributedType.MULTI_CPU),
        (
            {"dp_replicate_size": 2, "dp_shard_size": 2},
            4,
            ("dp_replicate", "dp_shard"),
            (2, 2),
            DistributedType.FSDP,
        ),
        ({"dp_shard_size": 2, "tp_size": 2}, 4, ("dp_shard", "tp"), (2, 2), DistributedType.FSDP),
    ],
)
def test_the_device_mesh_is_built_and_works(sizes, world_size, names, shape, kind):
    def build():
        state = AcceleratorState(parallelism_config=ParallelismConfig(**sizes))
        mesh = state.device_mesh
        own = torch.ones(1)
        torch.distributed.all_reduce(own, group=mesh.get_group(names[-1]))
        return mesh.mesh_dim_names, tuple(mesh.shape), own.item(), state.distributed_type

    results = debug_launcher(build, num_processes=world_size)

    assert list(results) == [(names, shape, float(shape[-1]), kind)] * world_size


def test_sizes_that_do_not_make_up_all_ranks():
    with pytest.raises(ValueError, match=r"dp_shard_size=2 .* = 4 ranks, but there are 1"):
        AcceleratorState(parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2))
    assert not AcceleratorState.is_initialized()


def test_repr_names_what_was_given():
    state = AcceleratorState(mixed_precision="bf16", torch_tp_plugin=TorchTensorParallelPlugin(2))

    lines = repr(state).splitlines()
    assert "Mixed precision: bf16" in lines
    assert "Distributed type: DistributedType.TP" in lines
    assert any(line.startswith("Tensor parallel plugin: ") for line in lines)


def test_the_gradient_state_is_its_own():
    AcceleratorState()
    assert not GradientState.is_initialized()
