"""The configuration dataclasses: differences from defaults, checks, and Accelerate's own."""

from __future__ import annotations

import dataclasses
import inspect
import json
from datetime import timedelta

import accelerate.parallelism_config
import accelerate.utils
import pytest
import torch

import nbstate
from nbstate import plugins
from nbstate.plugins import Plugin, adopt

ALL = [value for value in vars(plugins).values() if isinstance(value, type) and value is not Plugin]


@pytest.mark.parametrize("cls", ALL)
def test_a_fresh_one_differs_in_nothing(cls):
    assert cls().to_kwargs() == {}


@pytest.mark.parametrize("cls", ALL)
def test_each_is_documented_field_by_field(cls):
    text = inspect.getdoc(cls)
    for field in dataclasses.fields(cls):
        assert field.name in text, f"{cls.__name__}.{field.name}"


def test_what_differs_is_given():
    assert nbstate.GradientAccumulationPlugin(
        num_steps=4, sync_with_dataloader=False
    ).to_kwargs() == {
        "num_steps": 4,
        "sync_with_dataloader": False,
    }
    assert nbstate.InitProcessGroupKwargs(timeout=timedelta(minutes=1)).to_kwargs() == {
        "timeout": timedelta(minutes=1)
    }
    assert nbstate.AutocastKwargs(cache_enabled=False).to_kwargs() == {"cache_enabled": False}


def test_what_is_given_is_a_copy():
    plugin = nbstate.TorchDynamoPlugin(options={"a": 1})

    plugin.to_kwargs()["options"]["b"] = 2

    assert plugin.options == {"a": 1}


def test_kwargs_are_what_torch_takes():
    torch.amp.GradScaler("cpu", **nbstate.GradScalerKwargs(init_scale=8.0).to_kwargs())
    torch.autocast("cpu", **nbstate.AutocastKwargs(enabled=False).to_kwargs())
    parameters = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    ours = dataclasses.fields(nbstate.DistributedDataParallelKwargs)
    assert {field.name for field in ours if not field.name.startswith("comm_")} <= set(parameters)
    told = nbstate.TorchDynamoPlugin(backend="AOT_EAGER", use_regional_compilation=True)
    assert told.to_kwargs() == {"backend": "aot_eager"}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: nbstate.GradientAccumulationPlugin(num_steps=0), "num_steps=0 must be a whole"),
        (lambda: nbstate.GradientAccumulationPlugin(num_steps=2.5), "num_steps=2.5"),
        (lambda: nbstate.GradientAccumulationPlugin(last_window="keep"), "'rescale', 'carry'"),
        (lambda: nbstate.GradScalerKwargs(growth_factor=0.5), "growth_factor=0.5 must be above 1"),
        (lambda: nbstate.GradScalerKwargs(backoff_factor=1.0), "between 0 and 1"),
        (lambda: nbstate.GradScalerKwargs(init_scale=0), "init_scale=0 must be above 0"),
        (lambda: nbstate.GradScalerKwargs(growth_interval=0), "growth_interval=0"),
        (lambda: nbstate.DistributedDataParallelKwargs(comm_hook="fp8"), "comm_hook='fp8'"),
        (
            lambda: nbstate.FullyShardedDataParallelPlugin(fsdp_version=1),
            "fsdp_version=1 must be 2",
        ),
        (
            lambda: nbstate.FullyShardedDataParallelPlugin(state_dict_type="half"),
            "'full_state_dict'",
        ),
        (
            lambda: nbstate.FullyShardedDataParallelPlugin(auto_wrap_policy="all"),
            "'transformer_based_wrap', 'size_based_wrap', 'no_wrap'",
        ),
        (
            lambda: nbstate.FullyShardedDataParallelPlugin(auto_wrap_policy="size_based_wrap"),
            "min_num_params=None must be a whole number",
        ),
        (
            lambda: nbstate.FullyShardedDataParallelPlugin(
                auto_wrap_policy="transformer_based_wrap"
            ),
            "transformer_cls_names_to_wrap=None must be the names",
        ),
        (lambda: nbstate.TorchTensorParallelPlugin(tp_size=0), "tp_size=0"),
        (lambda: nbstate.ParallelismConfig(cp_size=-1), "cp_size=-1"),
        (lambda: nbstate.TorchDynamoPlugin(mode="fast"), "mode='fast' must be one of"),
        (
            lambda: nbstate.TorchDynamoPlugin(mode="default", options={"x": 1}),
            "torch.compile takes one of them",
        ),
        (lambda: nbstate.DeepSpeedPlugin(zero_stage=4), "zero_stage=4 must be one of 0, 1, 2, 3"),
        (
            lambda: nbstate.DeepSpeedPlugin({"zero_optimization": {"stage": 4}}),
            "zero_stage=4 must be one of",
        ),
        (
            lambda: nbstate.DeepSpeedPlugin(zero3_init_flag=True),
            "zero3_init_flag=True must be False: build the model inside deepspeed.zero.Init(",
        ),
        (lambda: nbstate.DeepSpeedPlugin(offload_param_device="gpu"), "offload_param_device='gpu'"),
        (
            lambda: nbstate.DeepSpeedPlugin(offload_optimizer_device="nvme"),
            "offload_optimizer_nvme_path=None",
        ),
        (lambda: nbstate.MegatronLMPlugin(tp_degree=0), "tp_degree=0"),
    ],
)
def test_mistakes_name_the_value_and_what_is_allowed(make, told):
    with pytest.raises(ValueError, match="must be") as caught:
        make()
    assert told in str(caught.value)


def test_sizes_multiply_to_the_world():
    sizes = nbstate.ParallelismConfig(dp_replicate_size=2, dp_shard_size=3, tp_size=4)

    assert sizes.total_size == 24
    assert sizes.data_parallel_size == 6
    assert sizes.active_dimensions == ("dp_replicate", "dp_shard", "tp")
    sizes.check_world_size(24)
    with pytest.raises(ValueError, match="24 ranks") as caught:
        sizes.check_world_size(8)
    assert str(caught.value) == (
        "ParallelismConfig: dp_replicate_size=2 x dp_shard_size=3 x cp_size=1 x tp_size=4 "
        "= 24 ranks, but there are 8"
    )


def test_megatrons_degrees_divide_the_world():
    plugin = nbstate.MegatronLMPlugin(tp_degree=2, pp_degree=2)

    plugin.check_world_size(8)
    with pytest.raises(ValueError, match="= 4 ranks, and 6 ranks"):
        plugin.check_world_size(6)


def test_deepspeeds_configuration(tmp_path):
    plugin = nbstate.DeepSpeedPlugin(
        zero_stage=3,
        gradient_clipping=1.0,
        gradient_accumulation_steps=2,
        offload_param_device="nvme",
        offload_param_nvme_path="/scratch",
        offload_optimizer_device="cpu",
    )
    config = plugin.deepspeed_config
    assert config["zero_optimization"] == {
        "stage": 3,
        "stage3_gather_16bit_weights_on_model_save": False,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "nvme", "nvme_path": "/scratch"},
    }
    assert (config["gradient_clipping"], config["gradient_accumulation_steps"]) == (1.0, 2)

    file = tmp_path / "ds.json"
    said = {"zero_optimization": {"stage": 1, "overlap_comm": True}, "gradient_clipping": "auto"}
    file.write_text(json.dumps(said))
    plugin = nbstate.DeepSpeedPlugin(hf_ds_config=file, zero3_save_16bit_model=True)
    assert (plugin.zero_stage, plugin.gradient_clipping) == (1, 1.0)
    assert plugin.deepspeed_config["zero_optimization"] == {
        "stage": 1,
        "overlap_comm": True,
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    assert plugin.deepspeed_config["gradient_clipping"] == 1.0


def test_communication_hooks_are_registered():
    registered = []

    class Model:
        def register_comm_hook(self, state, hook):
            registered.append((state, hook))

    nbstate.DistributedDataParallelKwargs().register_comm_hook(Model())
    assert registered == []
    nbstate.DistributedDataParallelKwargs(comm_hook="fp16").register_comm_hook(Model())
    assert registered[0][0] is None
    assert registered[0][1].__name__ == "fp16_compress_hook"


class theirs:  # noqa: N801, reads as a function that is called later
    """An object of Accelerate's, made when a test asks for it."""

    def __init__(self, name, **settings):
        self.name, self.settings = name, settings

    def make(self):
        home = (
            accelerate.parallelism_config if self.name == "ParallelismConfig" else accelerate.utils
        )
        try:
            return getattr(home, self.name)(**self.settings)
        except ImportError as error:  # Accelerate's FSDP 2 wants torch 2.6
            pytest.skip(str(error))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            theirs("GradientAccumulationPlugin", num_steps=4),
            nbstate.GradientAccumulationPlugin(num_steps=4),
        ),
        (
            theirs("InitProcessGroupKwargs", timeout=timedelta(hours=1)),
            nbstate.InitProcessGroupKwargs(timeout=timedelta(hours=1)),
        ),
        (theirs("InitProcessGroupKwargs"), nbstate.InitProcessGroupKwargs()),
        (
            theirs("DistributedDataParallelKwargs", find_unused_parameters=True, comm_hook="fp16"),
            nbstate.DistributedDataParallelKwargs(find_unused_parameters=True, comm_hook="fp16"),
        ),
        (
            theirs("DistributedDataParallelKwargs"),
            nbstate.DistributedDataParallelKwargs(),
        ),
        (theirs("GradScalerKwargs", init_scale=2.0), nbstate.GradScalerKwargs(init_scale=2.0)),
        (theirs("AutocastKwargs", enabled=False), nbstate.AutocastKwargs(enabled=False)),
        (
            theirs("DataLoaderConfiguration", split_batches=True),
            nbstate.DataLoaderConfiguration(split_batches=True),
        ),
        (
            theirs("TorchDynamoPlugin", backend="inductor", mode="max-autotune"),
            nbstate.TorchDynamoPlugin(mode="max-autotune"),
        ),
        (
            theirs("FullyShardedDataParallelPlugin", fsdp_version=2),
            nbstate.FullyShardedDataParallelPlugin(),
        ),
        (
            theirs(
                "FullyShardedDataParallelPlugin",
                fsdp_version=2,
                reshard_after_forward=False,
                cpu_offload=True,
                state_dict_type="FULL_STATE_DICT",
                auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=["Block"],
            ),
            nbstate.FullyShardedDataParallelPlugin(
                reshard_after_forward=False,
                cpu_offload=True,
                state_dict_type="full_state_dict",
                auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=["Block"],
            ),
        ),
        (
            theirs("TorchTensorParallelPlugin", tp_size=2),
            nbstate.TorchTensorParallelPlugin(tp_size=2),
        ),
        (
            theirs("ParallelismConfig", dp_shard_size=2, dp_replicate_size=3),
            nbstate.ParallelismConfig(dp_shard_size=2, dp_replicate_size=3),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_accelerates_objects_are_taken_where_the_fields_fit(given, expected):
    assert adopt(type(expected), given.make(), "plugin") == expected


def test_fields_that_do_not_fit_are_named():
    given = theirs("ParallelismConfig", dp_shard_size=2, sp_size=2)

    with pytest.raises(ValueError, match="accelerate sets sp_size"):
        adopt(nbstate.ParallelismConfig, given.make(), "parallelism_config")


def test_fsdp_1_is_not_taken():
    given = theirs("FullyShardedDataParallelPlugin", fsdp_version=1)

    with pytest.raises(ValueError, match="fsdp_version=1 must be 2"):
        adopt(nbstate.FullyShardedDataParallelPlugin, given.make(), "fsdp_plugin")


def test_nothing_is_nothing():
    assert adopt(nbstate.DeepSpeedPlugin, None, "deepspeed_plugin") is None
