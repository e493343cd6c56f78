# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# Ports a program from onebit 0.2: sed -E -i -f from_0_2.sed FILES. CHANGELOG.md has the table of what it does.

# schedules: plan(step, lr) -> step_plan
s/\bstep_plan plan\(/due due_in(/g
s/schedule\(\)\.plan\(/schedule().due_in(/g
s/\bonebit::step_plan\{/onebit::due{/g
s/\.average_gradient\b/.average/g
s/\.ends_warm_up\b/.next_needs_outcome/g
s/\.last_average\b/.frees_averages/g
s/, *\.frozen = [a-z]+//g
