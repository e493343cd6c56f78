# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D program=PATH -P check_table.cmake
#
# Checks that a short run ends well, with a number wherever the table should have one.

execute_process(COMMAND "${program}" --task mlp --steps 30 --seeds 1 --ranks 2
                OUTPUT_VARIABLE table RESULT_VARIABLE status)
set(number "[0-9]+[.]?[0-9]*")
set(loss "${number} [(]${number} to ${number}[)]")
set(compared "${loss}, ${number} [<=>]")
if(NOT status EQUAL 0 OR NOT table MATCHES
   "\n[|] mlp, [^|]*[|] ${loss} [|] ${compared} [|] ${compared} [|] ${loss} [|] ${compared} [|] ${compared} [|] ${compared} [|] ${compared} [|]\n")
  message(FATAL_ERROR "status ${status}, or a row that is not as expected:\n${table}")
endif()
if(NOT table MATCHES "\n[|] bytes [^|]*[|] [|] ${loss} [|] ${loss} [|] [|] ${loss} [|] ${loss} [|] ${loss} [|] ${loss} [|]\n$")
  message(FATAL_ERROR "the last row is not as expected:\n${table}")
endif()
