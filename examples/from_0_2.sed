# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# Ports a program from onebit 0.2: sed -E -i -f from_0_2.sed FILES. Compile with -Wall then, and look at the
# plans of your own schedules. CHANGELOG.md has the table of what it does.

# schedules: plan(step, lr) -> step_plan
s/\bstep_plan plan\(/due due_in(/g
s/schedule\(\)\.plan\(/schedule().due_in(/g
s/\bonebit::step_plan\{/onebit::due{/g
s/\.average_gradient\b/.average/g
s/\.(may_end_warm_up|ends_warm_up)\b/.next_needs_outcome/g
s/\.last_average\b/.frees_averages/g
s/, *\.frozen = [^,;}]*//g
s/\.frozen = [^,;}]*, *//g
/^ *[a-z_]+\.frozen = [^;]*;$/d
s/\bstep_plan ([a-z_]+);/due \1;/
s/-> *(onebit::)?step_plan\b/-> \1due/
s/(due_in\([^()]*(\([^()]*\))?[^()]*\))\.local\(\)/\1.nothing()/g

# headers: rooms that name themselves
s:onebit/(core/config|core/concepts)\.hpp:onebit/onebit.hpp:
s:onebit/core/(launch|clipping|param_group)\.hpp:onebit/kernel/\1.hpp:
s:onebit/core/step_state\.hpp:onebit/kernel/scalars.hpp:
s:onebit/core/step_context\.hpp:onebit/kernel/context.hpp:
s:onebit/rule/following\.hpp:onebit/rule/refreshing.hpp:
s:onebit/step/state\.hpp:onebit/step/engine.hpp:
s:onebit/step/step\.hpp:onebit/step/step_in_progress.hpp:
s:onebit/checkpoint/restore\.hpp:onebit/step/restore.hpp:
s:onebit/by_name/make_optimizer\.hpp:onebit/extras/by_name.hpp:
s:onebit/papers/papers\.hpp:onebit/extras/papers.hpp:
s:onebit/per_tensor/per_tensor\.hpp:onebit/extras/per_tensor.hpp:
s:onebit/sharded/reduce_scatter_all_gather\.hpp:onebit/extras/sharded.hpp:
s:onebit/checkpoint_directory/checkpoint_files\.hpp:onebit/extras/checkpoint_files.hpp:

# suites for your own policies
s:["<](\.\./)*conformance/(backend|collective|compressor|lanes|rule|schedule|transport)\.hpp[">]:<onebit/testing/\2.hpp>:
s/TEST_CASE_TEMPLATE_INVOKE\(([a-z]+_conformance|rule_[a-z_]+),/TEST_CASE_TEMPLATE_INVOKE(onebit::testing::\1,/
s/\bonebit_test\b/onebit::testing/g
s/\bonebit::conformance\b/onebit::onebit/g

# policies come in any order, each found by its type: no {} in place of a collective
/\b(adam|lamb)\(/!s/, \{\}, (device|backend|onebit::cuda\(|onebit::host[({])/, \1/
s/\bfollowing_rule\b/refreshing_rule/g

# options of compressed steps are beside the rule's, not in them
s/\.(adam|lamb)\.max_step\b/.max_step/g
s/\.adam\.keeps_squares\b/.own_variance/g
s/\.(adam|lamb) = \{([^{}]*), \.max_step = ([^,{}]*)([^{}]*)\}/.\1 = {\2\4}, .max_step = \3/g
s/\.(adam|lamb) = \{\.max_step = ([^,{}]*)(, )?([^{}]*)\}/.\1 = {\4}, .max_step = \2/g
s/\.adam = \{([^{}]*), \.keeps_squares = ([^,{}]*)([^{}]*)\}(, \.max_step = [^,{}]*)?/.adam = {\1\3}\4, .own_variance = \2/g
s/\.adam = \{\.keeps_squares = ([^,{}]*)(, )?([^{}]*)\}(, \.max_step = [^,{}]*)?/.adam = {\3}\4, .own_variance = \1/g

# what no user writes
s/\bonebit::(cuda_buffer|warp_lanes|same_memory|cuda_graph|host_buffer|host_lanes|portable_lanes|avx2_lanes|rounded_exchange|encode_kernel|accumulate_kernel|hierarchical_exchange|gather_scatter_exchange|group_scale_kernel|status_kernel|check_kernel|encoder|flat_exchange|stateful_exchange|compressor_or_identity|TileCompressor|WordCompressor|exchange_memory|group_moments|bias_decay|ExchangeRule|SplittingTransport|DuplicatingTransport|NodeAwareTransport|HostGatheringTransport|WaitingTransport|DeviceAwareTransport|HalfSummingTransport|StartingTransport|Element|element_type|any_pointer|any_span|pointer_to|span_of|slot_format|mean_view|double_buffer|flatten_kernel|memory_view|one_word|then_once|mismatch|moments_constants|tensor_scalars|tensor_entry|direction_units|variance_kernel|lamb_layer|sum_lr_kernel|engine|variance_refresh|old_files|step_in_progress|running|known_checkpoints|type_of|is_any|step_tables_sums|crc32c|mixed|digest|segment|calls|dense_average|unrounded|run_wide|launch_together|launch_then_once|take_mismatch|fetch_scalars|outcome_of|gradient_norm_of|make_moments|floats_of|make_slot_format|make_scale_entries|scale_given|start_sender|archive_start|checked_compressor|by_transport|resolved|n_buckets|save_checkpoint|load_checkpoint|host_view|check_backend|check_split|check_transport|exponent_of|power_of_two|stochastic_bf16|stochastic_power_of_two|digest_step|tile_buffers|status_steps|validate_range|bound_of|buckets_of_means|load_old_job_of)\b/onebit::detail::\1/g
s/\bonebit::undo_in_buffer\b/onebit::detail::store_at_encode/g
s/\bnow->(lr|inverse_loss_scale|number|digest|optimizer|rank)\b/now->given.\1/g
s/\bnow->(skip|nonfinite)\b/now->verdict.\1/g
s/\bnow->(mean|own)_norm\b/now->norms.\1/g
s/\btile_room\b/tile_buffer/g
