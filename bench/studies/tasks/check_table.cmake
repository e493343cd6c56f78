# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D program=PATH -P check_table.cmake
#
# Checks that a short run ends well, with a number wherever the table should have one.

execute_process(COMMAND "${program}" --task mlp --steps 30 --seeds 1 --ranks 2
                OUTPUT_VARIABLE printed RESULT_VARIABLE status)
# The papers' forms may diverge: what that prints beside a number is no part of the row's form.
string(REGEX REPLACE "(e[+][0-9]+|, [0-9]+ steps skipped)" "" table "${printed}")
set(number "[0-9]+[.]?[0-9]*")
set(loss "${number} [(]${number} to ${number}[)]")
set(compared "${loss}, ${number} [<=>]")
set(row "\n[|] mlp, [^|]*[|] ${loss} [|] ${compared} [|] ${compared} [|] ${loss} [|] ${compared} [|]")
string(APPEND row " ${compared} [|] ${compared} [|] ${compared} [|]\n")
if(NOT status EQUAL 0 OR NOT table MATCHES "${row}")
  message(FATAL_ERROR "status ${status}, or a row that is not as expected:\n${printed}")
endif()
if(NOT table MATCHES "\n[|] bytes [^|]*[|] [|] ${loss} [|] ${loss} [|] [|] ${loss} [|] ${loss} [|] ${loss} [|] ${loss} [|]\n$")
  message(FATAL_ERROR "the last row is not as expected:\n${printed}")
endif()
