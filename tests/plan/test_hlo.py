"""What a compiled program moves, read from its text."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.plan.hlo import size_of, traffic

TEXT = """HloModule jit_f, entry_computation_layout={(f32[4,8]{1,0})->f32[4,8]{1,0}}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%slice_of_layers (p0: f32[5,4,8], p1: s32[]) -> f32[4,8] {
  %p0 = f32[5,4,8]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %one = f32[1,4,8]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,4,8}
  ROOT %flat = f32[4,8]{1,0} bitcast(%one)
}

%body (state: (s32[], f32[5,4,8])) -> (s32[], f32[5,4,8]) {
  %state = (s32[], f32[5,4,8]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %layers = f32[5,4,8]{2,1,0} get-tuple-element(%state), index=1
  %layer = f32[4,8]{1,0} fusion(%layers, %i), kind=kLoop, calls=%slice_of_layers
  %whole = f32[16,8]{1,0} all-gather(%layer), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %mean = f32[4,8]{1,0} all-reduce(%layer), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %next = (s32[], f32[5,4,8]{2,1,0}) tuple(%i, %layers)
}

%cond (state.1: (s32[], f32[5,4,8])) -> pred[] {
  %state.1 = (s32[], f32[5,4,8]{2,1,0}) parameter(0)
  ROOT %go = pred[] constant(true)
}

ENTRY %main (p: f32[5,4,8]) -> (s32[], f32[5,4,8]) {
  %p = f32[5,4,8]{2,1,0} parameter(0)
  %start = s32[] constant(0)
  %init = (s32[], f32[5,4,8]{2,1,0}) tuple(%start, %p)
  ROOT %loop = (s32[], f32[5,4,8]{2,1,0}) while(%init), condition=%cond, body=%body, TRIPS
}
"""
KNOWN = 'backend_config={"known_trip_count":{"n":"5"}}'
LAYER = 4 * 8 * 4


def test_bytes_of_a_type_are_those_of_all_its_arrays():
    assert size_of("(f32[4,8]{1,0}, bf16[3]{0}, pred[], s32[2]{0})") == 128 + 6 + 1 + 8
    assert size_of("f32[4]{0:T(128)S(1)}") == 0  # in the chip's own memory
    assert size_of("f32[4]{0:T(128)S(1)}", on_chip=True) == 16


@pytest.mark.parametrize(("trips", "endless", "times"), [(KNOWN, 7, 5), ("metadata={}", 7, 7)])
def test_what_a_loop_exchanges_counts_once_per_trip(trips, endless, times):
    found = traffic(TEXT.replace("TRIPS", trips), endless).collectives
    assert found["all-gather"] == (times, times * LAYER * 3, 4 * LAYER)  # each of four sends its part to three
    assert found["all-reduce"] == (times, times * LAYER, LAYER)  # among two: half out, half back
    assert set(found) == {"all-gather", "all-reduce"}


def test_a_fusion_that_takes_one_layer_reads_one_layer():
    moved = traffic(TEXT.replace("TRIPS", KNOWN), 7).memory
    layer, gathered, reduced = 2 * LAYER + 4, LAYER + 4 * LAYER, 2 * LAYER
    assert moved == 5 * (layer + gathered + reduced)


def test_the_text_of_a_real_program_is_read():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
    shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)

    def layers(x):
        return jax.lax.scan(lambda x, _: (jnp.sin(x) @ (x.T @ x), None), x, length=3)[0]

    compiled = jax.jit(layers, in_shardings=rows, out_shardings=whole).lower(shape).compile()
    found = traffic(compiled.as_text(), 1).collectives
    assert found["all-reduce"].count >= 3
    assert found["all-reduce"].largest == 16 * 16 * 4
    assert found["all-gather"] == (1, 7 * 16 * 4, 8 * 16 * 4)


OVERLAPPED = """
%taken (a: f32[5,4,8], i: s32[]) -> f32[4,8] {
  %a = f32[5,4,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %one = f32[1,4,8]{2,1,0} dynamic-slice(%a, %i, %zero, %zero), dynamic_slice_sizes={1,4,8}
  ROOT %flat = f32[4,8]{1,0} bitcast(%one)
}

%product (b: f32[5,4,8], j: s32[], x: f32[2,4]) -> f32[2,8] {
  %b = f32[5,4,8]{2,1,0} parameter(0)
  %j = s32[] parameter(1)
  %x = f32[2,4]{1,0} parameter(2)
  %layer = f32[4,8]{1,0} fusion(%b, %j), kind=kLoop, calls=%taken
  ROOT %y = f32[2,8]{1,0} convolution(%x, %layer), dim_labels=bf_io->bf
}

%step (part: bf16[3,8], whole: bf16[12,8], z: f32[2,8]) -> (f32[2,8], bf16[3,8], bf16[12,8]) {
  %part = bf16[3,8]{1,0} parameter(0)
  %whole = bf16[12,8]{1,0} parameter(1)
  %z = f32[2,8]{1,0} parameter(2)
  %gathered = bf16[12,8]{1,0} all-gather(%part), channel_id=7, replica_groups=[2,4]<=[8], dimensions={0}
  %sine = f32[2,8]{1,0} sine(%z)
  ROOT %out = (f32[2,8]{1,0}, bf16[3,8]{1,0}, bf16[12,8]{1,0}) tuple(%sine, %part, %gathered)
}

%body (state: (s32[], f32[5,4,8], f32[2,4], bf16[3,8], bf16[12,8])) -> (s32[]) {
  %state = (s32[], f32[5,4,8]{2,1,0}, f32[2,4]{1,0}, bf16[3,8]{1,0}, bf16[12,8]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %layers = f32[5,4,8]{2,1,0} get-tuple-element(%state), index=1
  %given = f32[2,4]{1,0} get-tuple-element(%state), index=2
  %shard = bf16[3,8]{1,0} get-tuple-element(%state), index=3
  %all = bf16[12,8]{1,0} get-tuple-element(%state), index=4
  %made = f32[2,8]{1,0} fusion(%layers, %n, %given), kind=kOutput, calls=%product
  %gone = (f32[2,8]{1,0}, bf16[3,8]{1,0}, bf16[12,8]{1,0}) fusion(%shard, %all, %made), kind=kLoop, calls=%step
  ROOT %next = (s32[]) tuple(%n)
}

%cond (state.1: (s32[])) -> pred[] {
  %state.1 = (s32[]) parameter(0)
  ROOT %go = pred[] constant(true)
}

ENTRY %main (p: bf16[3,8]) -> (s32[]) {
  %p = bf16[3,8]{1,0} parameter(0)
  %begun = (bf16[3,8]{1,0}, bf16[12,8]{1,0}) fusion(%p), kind=kLoop, calls=%start
  %init = (s32[]) tuple()
  ROOT %loop = (s32[]) while(%init), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
}

%start (q: bf16[3,8]) -> (bf16[3,8], bf16[12,8]) {
  %q = bf16[3,8]{1,0} parameter(0)
  %gathering = bf16[12,8]{1,0} all-gather(%q), channel_id=7, replica_groups=[2,4]<=[8], dimensions={0}
  ROOT %pair = (bf16[3,8]{1,0}, bf16[12,8]{1,0}) tuple(%q, %gathering)
}
"""


def test_a_gather_that_goes_on_while_a_loop_runs_counts_once_and_a_layer_taken_deep_inside_as_one_layer():
    found = traffic(OVERLAPPED, 7)
    shard = 3 * 8 * 2
    assert found.collectives == {"all-gather": (1, 3 * shard, 4 * shard)}
    product, sine = (4 * 8 + 1 + 2 * 4 + 2 * 8) * 4, 2 * (2 * 8) * 4
    assert found.memory == 5 * (product + sine)
