/* SPDX-FileCopyrightText: 2026 The onebit authors
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef ONEBIT_ONEBIT_H
#define ONEBIT_ONEBIT_H

#include <stddef.h>
#include <stdint.h>

/** @file
 * onebit for trainers in C (C99 and later), on host memory of floats.
 *
 * Include this where you call it, and add one C++20 file to the program:
 *
 *     #include <onebit/c/onebit_c.hpp>
 *
 * Functions that can fail return a status; onebit_last_error() says what was found and what to do.
 * No exception leaves them. Collective ones are called by all ranks, in the same order and with the
 * same numbers; when one rank fails all do, and nothing has changed, unless it says otherwise.
 * Objects may be used by any thread, but by one at a time. The guide to names and options is
 * examples/guide/deepspeed.md, to everything else examples/guide/README.md. */

#ifdef __cplusplus
extern "C" {
#endif

/** How a call went. */
typedef enum onebit_status {
  ONEBIT_OK = 0,            /**< as it should */
  ONEBIT_INVALID_INPUT = 1, /**< sizes that do not fit, options out of range, a NULL */
  ONEBIT_RANK_MISMATCH = 2, /**< ranks with other sizes, options, parameters, or at another step */
  ONEBIT_TRANSPORT_ERROR = 3,  /**< a peer that left, a time-out, a callback that failed */
  ONEBIT_BACKEND_ERROR = 4,    /**< a device */
  ONEBIT_CHECKPOINT_ERROR = 5, /**< a file that is truncated, damaged, of another configuration */
  ONEBIT_OUT_OF_MEMORY = 6,    /**< no memory */
  ONEBIT_UNSUPPORTED = 7,      /**< built without MPI */
  ONEBIT_ERROR = 8             /**< anything else */
} onebit_status;

/** Of the last call on this thread that failed. Valid until the next one that does. Never NULL. */
const char* onebit_last_error(void);

/* -- ranks ------------------------------------------------------------------------------------- */

/** One rank's link to the others. Destroy it after the optimizers that use it are built: they keep
 * what they need. */
typedef struct onebit_comm onebit_comm;

/** A transport of your own. Buffers do not overlap; slot i of `send` goes to rank i, slot i of
 * `receive` came from it, this rank's own too. Each call is collective and returns when the buffers
 * are done with; 0: all went well, anything else fails the step on this rank. A callback must not
 * wait for ever for a rank that is gone. */
typedef struct onebit_transport {
  int rank;      /**< of this one, from 0 */
  int size;      /**< how many there are */
  void* context; /**< handed to the callbacks; must outlive the optimizers */
  /** slot r of `send` goes to rank r */
  int (*all_to_all)(void* context, const void* send, void* receive, size_t slot_bytes);
  /** what `send` holds, slot_bytes, goes to all */
  int (*all_gather)(void* context, const void* send, void* receive, size_t slot_bytes);
  /** data[i] becomes the sum over the ranks; NULL: not needed, but with `sum` "transport" */
  int (*all_reduce_sum)(void* context, float* data, size_t n);
} onebit_transport;

/** One rank alone. */
onebit_status onebit_comm_self(onebit_comm** comm);
/** Over callbacks; the struct is copied. */
onebit_status onebit_comm_callbacks(const onebit_transport* transport, onebit_comm** comm);
/** Over MPI_COMM_WORLD, or (onebit_comm_mpi) over the communicator with this Fortran handle
 * (MPI_Comm_c2f), which is duplicated; MPI must be initialised. A collective may take
 * `timeout_seconds`; 0: for ever. Collective. ONEBIT_UNSUPPORTED unless the C++ file defines
 * ONEBIT_C_WITH_MPI before the include.
 */
onebit_status onebit_comm_mpi_world(double timeout_seconds, onebit_comm** comm);
/** The same over a communicator. */
onebit_status onebit_comm_mpi(int fortran_handle, double timeout_seconds, onebit_comm** comm);
/** NULL is ignored. */
void onebit_comm_destroy(onebit_comm* comm);
/** Its number; -1 for NULL. */
int onebit_comm_rank(const onebit_comm* comm);
/** Ranks in all; -1 for NULL. */
int onebit_comm_size(const onebit_comm* comm);

/** Runs f(comm, context) on n threads, as n ranks, and waits for all: for tests and experiments.
 * `comm` is gone when f returns. When f returns anything but 0 the other ranks are released from
 * their collectives, and this fails. */
onebit_status onebit_run_threads(int n, int (*f)(onebit_comm* comm, void* context), void* context);

/* -- optimizers -------------------------------------------------------------------------------- */

/** An optimizer of one rank. */
typedef struct onebit_optimizer onebit_optimizer;

/** One tensor of the trainer's memory, `size` floats each: never copied, and must stay where it is
 * for as long as the optimizer lives, or until onebit_rebind. Gradients are consumed: what they
 * hold after a step is unspecified. Tensors that share memory are listed once. */
typedef struct onebit_tensor {
  float* params; /**< changed by each step */
  float* grads;  /**< of this rank */
  size_t size;   /**< floats of each */
  size_t group;  /**< its place among the groups */
} onebit_tensor;

/** Tensors that share hyperparameters: the rate is lr * lr_factor; the decay is decoupled. */
typedef struct onebit_group {
  float lr_factor;    /**< not 0 here: see onebit_set_group */
  float weight_decay; /**< 0: none */
} onebit_group;

/** As JSON writes it: {"betas", "[0.9, 0.999]"}, {"freeze_step", "400"}. */
typedef struct onebit_option {
  const char* key;   /**< its name */
  const char* value; /**< a JSON text */
} onebit_option;

/** An optimizer by its name ("adam", "one_bit_adam", "OneBitAdam", ...), over the
 * tensors, in the order in which they are listed. Without groups (NULL, 0) there is one, with
 * lr_factor 1 and the decay that the option weight_decay names. Nothing that is passed need outlive
 * the call but the tensors' memory and a transport's context. Collective: the ranks compare sizes,
 * options and parameters, which must be equal. On failure *optimizer is NULL. */
onebit_status onebit_create(const char* name, const onebit_option* options, size_t n_options,
                            const onebit_tensor* tensors, size_t n_tensors,
                            const onebit_group* groups, size_t n_groups, onebit_comm* comm,
                            onebit_optimizer** optimizer);
/** NULL is ignored. Not collective. */
void onebit_destroy(onebit_optimizer* optimizer);

/** What travelled in a step. */
typedef enum onebit_phase {
  ONEBIT_DENSE = 0,      /**< exact averages: a baseline, a warm-up */
  ONEBIT_COMPRESSED = 1, /**< a compressed exchange */
  ONEBIT_LOCAL = 2       /**< nothing travelled */
} onebit_phase;

/** What one step did, on this rank. */
typedef struct onebit_report {
  uint64_t step;       /**< its number, from 0; one that all skipped gives it back */
  onebit_phase phase;  /**< what travelled */
  int skipped;         /**< a gradient was not finite, or a veto; nothing has changed on any rank */
  float gradient_norm; /**< of the mean gradient before it was clipped; NaN: not known */
  float skipped_share; /**< of all steps since onebit_create, 0 to 1 */
  float sent_of_dense; /**< bytes sent since then over those of averages of floats by a ring; NaN:
                          one rank */
  uint64_t bytes_sent; /**< by this rank */
  uint64_t bytes_between_nodes; /**< of these, by a hierarchical exchange */
  uint32_t collectives;         /**< in which they were */
  double encode_seconds;        /**< passes before and between them */
  double communicate_seconds;   /**< includes the wait for slower ranks */
  double update_seconds;        /**< passes after them */
} onebit_report;

/** A step from the gradients that lie in the tensors. inverse_loss_scale, 1 unless the loss was
 * scaled, multiplies every gradient. `report` may be NULL. Collective; waits. */
onebit_status onebit_step(onebit_optimizer* optimizer, float lr, float inverse_loss_scale,
                          onebit_report* report);
/** Announces a step with the same numbers, so that gradients may travel before it. Optional;
 * changes no bit. */
onebit_status onebit_begin(onebit_optimizer* optimizer, float lr, float inverse_loss_scale);
/** Then, from the last tensor to the first, each that is final, by its place in the list given to
 * onebit_create. What is announced may be overwritten; the call may wait for tensors that were
 * announced before. */
onebit_status onebit_ready(onebit_optimizer* optimizer, size_t tensor);

/** The report in one line, for logs (no line end). Writes at most n bytes, the
 * terminating 0 included; returns the length that all would have, as snprintf. 512 are enough. */
size_t onebit_report_text(const onebit_report* report, char* buffer, size_t n);
/** The same as a JSON object. */
size_t onebit_report_json(const onebit_report* report, char* buffer, size_t n);

/** Other numbers of a group (lr_factor 0: it stands still). This and what follows, up to
 * onebit_start_from: between steps, all ranks alike, not collective themselves. */
onebit_status onebit_set_group(onebit_optimizer* optimizer, size_t group, float lr_factor,
                               float weight_decay);
/** This tensor, by its place in the list given to onebit_create, has no gradient in the next step:
 * nothing of it changes. All ranks the same. */
onebit_status onebit_rest(onebit_optimizer* optimizer, size_t tensor);
/** Memory that moved, with the same values: params[t] and grads[t] of tensor t, of all of them, as
 * they are from the next step on. On this rank alone; cheap where nothing has moved, so that it may
 * be called before each step. On failure nothing has changed. */
onebit_status onebit_rebind(onebit_optimizer* optimizer, float* const* params, float* const* grads,
                            size_t n_tensors);
/** From the next step on, before anything has changed in it, f(context, norm) is asked with the
 * gradient's norm on every rank; where one returns anything but 0, all ranks skip the step. NULL:
 * nobody is asked. Collective: all ranks give one, or none. Costs what clipping costs. */
onebit_status onebit_veto(onebit_optimizer* optimizer, int (*f)(void* context, float norm),
                          void* context);
/** Compares parameters and moments of all ranks, bit for bit. Collective; not after a local step,
 * when they differ. */
onebit_status onebit_verify(onebit_optimizer* optimizer);
/** Warnings on stderr; rank 0 prints them at first. */
onebit_status onebit_warn(onebit_optimizer* optimizer, int on);
/** Takes Adam's moments over before the first step: m[t] and v[t] of tensor t, as they are before
 * their bias is corrected, after so many steps. All ranks the same; not collective. */
onebit_status onebit_start_from(onebit_optimizer* optimizer, const float* const* m,
                                const float* const* v, uint64_t steps);

/** All that this rank needs to go on, but for the parameters, which are yours to save, in one file:
 * a path for each rank. It is written as PATH.partial, flushed to the device, and renamed. On
 * failure the file that was there is as it was, and nothing else is left. */
onebit_status onebit_save(onebit_optimizer* optimizer, const char* path);
/** Reads it. Collective, after this rank's parameters were restored. */
onebit_status onebit_load(onebit_optimizer* optimizer, const char* path);
/** All ranks' checkpoints, parameters included, complete or absent: a directory for each step under
 * `root`, one for all ranks and of one job, of which the newest `keep` are left. Collective; on
 * failure older checkpoints are as they were, and nothing else is left. */
onebit_status onebit_save_all(onebit_optimizer* optimizer, const char* root, int keep);
/** Loads the newest that is whole, also with another number of ranks; *step is its number, or -1:
 * none was there, or the call failed. Collective; when loading fails parameters may have been
 * read. */
onebit_status onebit_load_latest(onebit_optimizer* optimizer, const char* root, int64_t* step);

/** The option of this name, or 1e-3; only what onebit_step is told counts. 0 for NULL, as below. */
float onebit_lr(const onebit_optimizer* optimizer);
/** Steps done, without the skipped ones. */
uint64_t onebit_steps(const onebit_optimizer* optimizer);
/** Steps skipped. */
uint64_t onebit_n_skipped(onebit_optimizer* optimizer);
/** Bytes that live from step to step. */
size_t onebit_state_bytes(const onebit_optimizer* optimizer);
/** The algorithm with all its options, as long as the optimizer lives; NULL for NULL. */
const char* onebit_description(const onebit_optimizer* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* ONEBIT_ONEBIT_H */
