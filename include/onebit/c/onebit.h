/* SPDX-FileCopyrightText: 2026 The onebit authors
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef ONEBIT_ONEBIT_H
#define ONEBIT_ONEBIT_H

#include <stddef.h>
#include <stdint.h>

/** @file
 * C interface (C99 and later) to the optimizers, for float tensors in host memory.
 *
 * Include this header in C files, and add to the program one C++20 file with the line
 *
 *     #include <onebit/c/onebit_c.hpp>
 *
 * Functions that can fail return a status; onebit_last_error() describes the failure and a remedy.
 * No C++ exception leaves a function. All ranks must call collective functions, in the same order
 * and with equal numbers. If a call fails on one rank it fails on all ranks and changes nothing,
 * unless its comment says otherwise. (A NULL optimizer or communicator fails on this rank alone:
 * nothing then leads to the others, which wait until their transport gives up.) Any thread may use
 * an object, but only one at a time.
 * Names and options: docs/deepspeed.md. All else: docs/README.md. */

#ifdef __cplusplus
extern "C" {
#endif

/** Result of a call. */
typedef enum onebit_status {
  ONEBIT_OK = 0,               /**< success */
  ONEBIT_INVALID_INPUT = 1,    /**< sizes that do not fit, options out of range, a NULL pointer */
  ONEBIT_RANK_MISMATCH = 2,    /**< ranks differ in sizes, options, parameters or step */
  ONEBIT_TRANSPORT_ERROR = 3,  /**< a peer that left, a time-out, a failed callback */
  ONEBIT_BACKEND_ERROR = 4,    /**< a device failed */
  ONEBIT_CHECKPOINT_ERROR = 5, /**< a truncated or damaged file, or another configuration's */
  ONEBIT_OUT_OF_MEMORY = 6,    /**< an allocation failed */
  ONEBIT_UNSUPPORTED = 7,      /**< built without MPI */
  ONEBIT_ERROR = 8             /**< anything else */
} onebit_status;

/** Returns the text of this thread's last failure, valid until its next failure. Never NULL. */
const char* onebit_last_error(void);

/* -- ranks ------------------------------------------------------------------------------------- */

/** Communicator of one rank. May be destroyed once the optimizers that use it are built: optimizers
 * keep what they need. */
typedef struct onebit_comm onebit_comm;

/** Transport defined by the trainer. Callbacks are collective and blocking. Slot r of `receive`
 * comes from rank r, on rank r too. `send` and `receive` do not overlap. Callbacks return 0 on
 * success; any other value fails the step on this rank. Callbacks must not wait for ever for a rank
 * that is gone. */
typedef struct onebit_transport {
  int rank;      /**< number of this rank, from 0 */
  int size;      /**< number of ranks */
  void* context; /**< passed to the callbacks; must outlive the optimizers */
  /** Sends slot r of `send`, which has slot_bytes, to rank r. */
  int (*all_to_all)(void* context, const void* send, void* receive, size_t slot_bytes);
  /** Sends the slot_bytes at `send` to all ranks. */
  int (*all_gather)(void* context, const void* send, void* receive, size_t slot_bytes);
  /** Replaces data[i] by its sum over the ranks, in equal bits on all. May be NULL, unless a sum
      option is "transport" or onebit_moments is called in compressed steps. */
  int (*all_reduce_sum)(void* context, float* data, size_t n);
} onebit_transport;

/** Makes a communicator of a single rank. */
onebit_status onebit_comm_self(onebit_comm** comm);
/** Makes a communicator over callbacks; copies the struct. */
onebit_status onebit_comm_callbacks(const onebit_transport* transport, onebit_comm** comm);
/** Makes a communicator over a duplicate of MPI_COMM_WORLD; MPI must be initialised. A collective
 * fails after `timeout_seconds` (0: waits for ever). Collective. Returns ONEBIT_UNSUPPORTED unless
 * the C++ file defines ONEBIT_C_WITH_MPI before the include. */
onebit_status onebit_comm_mpi_world(double timeout_seconds, onebit_comm** comm);
/** Like onebit_comm_mpi_world, over the communicator with this Fortran handle (MPI_Comm_c2f). */
onebit_status onebit_comm_mpi(int fortran_handle, double timeout_seconds, onebit_comm** comm);
/** Destroys a communicator; ignores NULL. */
void onebit_comm_destroy(onebit_comm* comm);
/** Returns the number of this rank, from 0; -1 for NULL. */
int onebit_comm_rank(const onebit_comm* comm);
/** Returns the number of ranks; -1 for NULL. */
int onebit_comm_size(const onebit_comm* comm);

/** Runs f(comm, context) on n threads, one per rank, and waits for all: for tests and experiments.
 * `comm` is valid until f returns. If f returns a value other than 0, the other ranks are released
 * from their collectives, and this call fails. */
onebit_status onebit_run_threads(int n, int (*f)(onebit_comm* comm, void* context), void* context);

/* -- optimizers -------------------------------------------------------------------------------- */

/** Optimizer of one rank. */
typedef struct onebit_optimizer onebit_optimizer;

/** One tensor in the trainer's memory, which is used in place. The memory must not move while the
 * optimizer lives, unless onebit_rebind is called. Steps may use gradients as scratch: their values
 * after a step are unspecified. Tensors that share memory are listed once. */
typedef struct onebit_tensor {
  float* params; /**< changed by each step */
  float* grads;  /**< gradient of this rank */
  size_t size;   /**< number of floats at params, and at grads */
  size_t group;  /**< index of its group */
} onebit_tensor;

/** Hyperparameters of a group of tensors. Its learning rate is onebit_step's lr * lr_factor. */
typedef struct onebit_group {
  float lr_factor;    /**< not 0 in onebit_create; onebit_set_group takes 0 */
  float weight_decay; /**< decoupled; 0: none */
} onebit_group;

/** Option as its JSON key and value: {"betas", "[0.9, 0.999]"}, {"freeze_step", "400"}. */
typedef struct onebit_option {
  const char* key;   /**< name of the option */
  const char* value; /**< JSON text of the value */
} onebit_option;

/** Makes an optimizer by name ("adam", "one_bit_adam", "OneBitAdam", ...). All ranks list the
 * tensors in the same order. Without groups (NULL, 0) all tensors are in one group, with lr_factor
 * 1 and the decay of option weight_decay. Only the tensors' memory and the context of a transport
 * must outlive the call. Collective: sizes, options and parameters must be equal on all ranks,
 * which compare them. On failure *optimizer is NULL. */
onebit_status onebit_create(const char* name, const onebit_option* options, size_t n_options,
                            const onebit_tensor* tensors, size_t n_tensors,
                            const onebit_group* groups, size_t n_groups, onebit_comm* comm,
                            onebit_optimizer** optimizer);
/** Destroys an optimizer; ignores NULL. Not collective. */
void onebit_destroy(onebit_optimizer* optimizer);

/** What a step made of the ranks' gradients. */
typedef enum onebit_phase {
  ONEBIT_DENSE = 0,      /**< an exact average: baseline and warm-up */
  ONEBIT_COMPRESSED = 1, /**< a compressed exchange */
  ONEBIT_LOCAL = 2       /**< each rank its own step: parameters of the ranks differ after it */
} onebit_phase;

/** Report of one step on this rank. */
typedef struct onebit_report {
  uint64_t step;      /**< from 0; used again after a step that all ranks skipped */
  onebit_phase phase; /**< what the step made of the ranks' gradients */
  int skipped; /**< 1: non-finite gradient or veto; nothing has changed on any rank (in a local
                  step: on this rank) */
  float gradient_norm; /**< of the mean gradient before clipping, or an estimate; NaN: not known */
  float skipped_share; /**< share of skipped steps since onebit_create, 0 to 1 */
  float sent_of_dense; /**< all bytes sent so far / bytes of float ring allreduces; NaN: one rank */
  uint64_t bytes_sent; /**< by this rank in the step */
  uint64_t bytes_between_nodes; /**< part of bytes_sent, in a hierarchical exchange */
  uint32_t collectives;         /**< number of collectives in the step */
  double encode_seconds;        /**< passes before and between the collectives */
  double communicate_seconds;   /**< collectives, with the wait for slower ranks */
  double update_seconds;        /**< passes after the collectives */
  int refreshed; /**< 1: v was brought up to date over the ranks; a local step sends only then */
} onebit_report;

/** Does one step with the gradients that are in the tensors. inverse_loss_scale, 1 unless the loss
 * was scaled, multiplies every gradient. `report` may be NULL. Collective; blocks. */
onebit_status onebit_step(onebit_optimizer* optimizer, float lr, float inverse_loss_scale,
                          onebit_report* report);
/** Begins a step, so that onebit_ready can send gradients before onebit_step, which must follow
 * with equal numbers. Optional: results are equal bit for bit. */
onebit_status onebit_begin(onebit_optimizer* optimizer, float lr, float inverse_loss_scale);
/** After onebit_begin: marks the gradient of a tensor (index as in onebit_create) as final, best
 * from the last tensor to the first, in the same order on all ranks. Leave the gradient alone until
 * onebit_step returns: it may be overwritten. May wait for tensors that were marked before. */
onebit_status onebit_ready(onebit_optimizer* optimizer, size_t tensor);

/** Formats a report as one line for logs, without a line end. Writes at most n bytes, the
 * terminating 0 included; returns the full length, as snprintf does. 512 bytes are enough. */
size_t onebit_report_text(const onebit_report* report, char* buffer, size_t n);
/** Like onebit_report_text, but formats a JSON object. */
size_t onebit_report_json(const onebit_report* report, char* buffer, size_t n);

/** Sets the numbers of a group for later steps (lr_factor 0: parameters stay, moments go on). All
 * ranks must give equal numbers; not collective. Do not call this function, or a function below up
 * to onebit_start_from, between onebit_begin and onebit_step. */
onebit_status onebit_set_group(onebit_optimizer* optimizer, size_t group, float lr_factor,
                               float weight_decay);
/** Declares that a tensor (index as in onebit_create) has no gradient in the next step: parameters
 * and moments stay (exceptions: see optimizer::rest). All ranks must do so; not collective. */
onebit_status onebit_rest(onebit_optimizer* optimizer, size_t tensor);
/** Sets the addresses of all tensors from the next step on, params[t] and grads[t] of tensor t, for
 * memory that moved with its values. Concerns this rank alone. Cheap if nothing has moved: may be
 * called before each step. On failure nothing has changed. */
onebit_status onebit_rebind(onebit_optimizer* optimizer, float* const* params, float* const* grads,
                            size_t n_tensors);
/** Sets a veto: in later steps each rank calls f(context, norm) with the gradient's norm before any
 * change. If f returns nonzero on one rank, all ranks skip the step (if local: only this rank).
 * NULL removes the veto. Collective: all ranks give a veto, or none. Costs as much as clipping. */
onebit_status onebit_veto(onebit_optimizer* optimizer, int (*f)(void* context, float norm),
                          void* context);
/** Compares parameters, moments and previous means of all ranks, bit for bit. Collective. Fails
 * with ONEBIT_INVALID_INPUT after a local step, when ranks differ. */
onebit_status onebit_verify(onebit_optimizer* optimizer);
/** Turns warnings of this rank on stderr on or off (at first: on). Most come from rank 0 alone. */
onebit_status onebit_warn(onebit_optimizer* optimizer, int on);
/** Sets moments of Adam before the first step: m[t] and v[t] of tensor t, before bias correction,
 * after `steps` steps of another optimizer: as many as v has averaged squares. They count for bias
 * corrections (a tensor whose moments are all 0 starts as in a new Adam); the schedule begins at
 * its start. Equal on all ranks; not collective. */
onebit_status onebit_start_from(onebit_optimizer* optimizer, const float* const* m,
                                const float* const* v, uint64_t steps);
/** Writes the moments of a running optimizer, as onebit_start_from takes them: to m[t] and v[t], as
 * many floats as tensor t has. Equal on all ranks. Collective; not after a local step, when ranks
 * differ. See optimizer::moments. */
onebit_status onebit_moments(onebit_optimizer* optimizer, float* const* m, float* const* v);

/** Saves all that this rank needs to go on, except the parameters, to one file: a path for each
 * rank. Writes PATH.partial, flushes it to the device, and renames it. On failure an older file at
 * PATH is unchanged, and no other file is left. Not collective. */
onebit_status onebit_save(onebit_optimizer* optimizer, const char* path);
/** Loads a file of onebit_save. Restore the parameters of this rank first. Collective. */
onebit_status onebit_load(onebit_optimizer* optimizer, const char* path);
/** Saves the state and parameters of all ranks in a directory of this step under `root`, complete
 * or not at all. All ranks of a job share its root. Leaves `keep` checkpoints, the newest up to
 * this step, of those that this optimizer has saved, loaded, or found in onebit_load_latest; fails,
 * and changes nothing, if this or a later step is there from another run. Collective; on failure
 * older checkpoints are unchanged, and nothing else is left. */
onebit_status onebit_save_all(onebit_optimizer* optimizer, const char* root, int keep);
/** Loads the newest complete checkpoint under `root`, also of another number of ranks. *step is its
 * number of steps; -1 if there is none or the call failed. Collective; a load that fails may have
 * overwritten parameters. */
onebit_status onebit_load_latest(onebit_optimizer* optimizer, const char* root, int64_t* step);

/** Returns option lr, by default 1e-3; steps do not use it. Returns 0 for NULL. */
float onebit_lr(const onebit_optimizer* optimizer);
/** Returns the number of steps done; skipped steps count only if local. Returns 0 for NULL. */
uint64_t onebit_steps(const onebit_optimizer* optimizer);
/** Returns the number of steps skipped; 0 for NULL. */
uint64_t onebit_n_skipped(onebit_optimizer* optimizer);
/** Returns the bytes of state that lasts from step to step; 0 for NULL. */
size_t onebit_state_bytes(const onebit_optimizer* optimizer);
/** Returns algorithm and options as text, valid while the optimizer lives; NULL for NULL. */
const char* onebit_description(const onebit_optimizer* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* ONEBIT_ONEBIT_H */
