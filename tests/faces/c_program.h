/* SPDX-FileCopyrightText: 2026 The onebit authors
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef ONEBIT_TESTS_FACES_C_PROGRAM_H
#define ONEBIT_TESTS_FACES_C_PROGRAM_H

#ifdef __cplusplus
extern "C" {
#endif

/* Goes through all of onebit.h as C99. The line of what was not as it should be; 0: all was. */
int c_program(const char* directory);

/* Trains `steps` steps of `algorithm` on this rank of threads: x are 300 parameters, all 1. */
int c_training(const char* algorithm, int n_ranks, int steps, float* x_of_rank_0);

#ifdef __cplusplus
}
#endif

#endif /* ONEBIT_TESTS_FACES_C_PROGRAM_H */
