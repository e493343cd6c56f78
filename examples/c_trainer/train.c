/* SPDX-FileCopyrightText: 2026 The onebit authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A trainer in plain C, with everything in flat arrays: a small network that guesses the next
 * letter of a text from the four before it, on several ranks, each with letters of its own. The
 * lines that are onebit's call onebit_...; adamw() is what they replace.
 *
 *     c_trainer [algorithm] [ranks] [steps]
 *
 * trains with adamw() and gradients that are averaged in full, with onebit's "adam", which must
 * give the same losses, and with the algorithm. Ranks are processes, joined by sockets (see
 * ranks.h), or, under mpirun, MPI's. */

#include <math.h>
#include <onebit/c/onebit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

/* -- the model: x = embeddings of C letters, h = tanh(w1 x + b1), logits = w2 h + b2 -------------
 */

enum { V = 27, C = 4, E = 8, H = 32, X = C * E, B = 32 };
enum { n_emb = V * E, n_w1 = H * X, n_b1 = H, n_w2 = V * H, n_b2 = V };
enum { n_params = n_emb + n_w1 + n_b1 + n_w2 + n_b2, n_tensors = 5 };

static const size_t sizes[n_tensors] = {n_emb, n_w1, n_b1, n_w2, n_b2};

typedef struct model {
  float params[n_params], grads[n_params];
  float *emb, *w1, *b1, *w2, *b2; /* in params */
  float *demb, *dw1, *db1, *dw2, *db2;
} model;

static unsigned next_random(unsigned* state) {
  *state = *state * 1664525U + 1013904223U;
  return *state >> 8;
}

static void start(model* m) {
  unsigned seed = 1; /* the same on all ranks: onebit compares */
  float* p[n_tensors];
  float* g[n_tensors];
  size_t at = 0;
  for (int t = 0; t < n_tensors; at += sizes[t++]) {
    p[t] = m->params + at;
    g[t] = m->grads + at;
  }
  m->emb = p[0], m->w1 = p[1], m->b1 = p[2], m->w2 = p[3], m->b2 = p[4];
  m->demb = g[0], m->dw1 = g[1], m->db1 = g[2], m->dw2 = g[3], m->db2 = g[4];
  for (int i = 0; i < n_params; ++i) {
    m->params[i] = 0.2F * ((float)next_random(&seed) / (float)(1 << 24) - 0.5F);
  }
}

/* The loss of one example, its gradient added up. */
static float learn(model* m, const unsigned char* letters, int target) {
  float x[X], h[H], p[V], dh[H] = {0}, most = -1e30F, sum = 0;
  for (int i = 0; i < X; ++i) x[i] = m->emb[letters[i / E] * E + i % E];
  for (int j = 0; j < H; ++j) {
    float a = m->b1[j];
    for (int i = 0; i < X; ++i) a += m->w1[j * X + i] * x[i];
    h[j] = tanhf(a);
  }
  for (int v = 0; v < V; ++v) {
    p[v] = m->b2[v];
    for (int j = 0; j < H; ++j) p[v] += m->w2[v * H + j] * h[j];
    most = p[v] > most ? p[v] : most;
  }
  for (int v = 0; v < V; ++v) sum += p[v] = expf(p[v] - most);
  for (int v = 0; v < V; ++v) {
    const float d = (p[v] / sum - (v == target ? 1.0F : 0.0F)) / B;
    m->db2[v] += d;
    for (int j = 0; j < H; ++j) {
      m->dw2[v * H + j] += d * h[j];
      dh[j] += d * m->w2[v * H + j];
    }
  }
  for (int j = 0; j < H; ++j) {
    const float d = dh[j] * (1 - h[j] * h[j]);
    m->db1[j] += d;
    for (int i = 0; i < X; ++i) {
      m->dw1[j * X + i] += d * x[i];
      m->demb[letters[i / E] * E + i % E] += d * m->w1[j * X + i];
    }
  }
  return -logf(p[target] / sum);
}

/* The mean loss of this rank's batch of a step, and its gradient. */
static float loss_and_gradient(model* m, int step, int rank) {
  unsigned seed = (unsigned)(1 + step * 131 + rank * 7919);
  float loss = 0;
  memset(m->grads, 0, sizeof m->grads);
  for (int b = 0; b < B; ++b) {
    unsigned char text[C + 1]; /* each letter follows from the one before it, mostly */
    text[0] = (unsigned char)(next_random(&seed) % V);
    for (int i = 1; i <= C; ++i) {
      const int is_noise = next_random(&seed) % 8 == 0;
      text[i] = (unsigned char)((is_noise ? next_random(&seed) : 5U * text[i - 1] + 3U) % V);
    }
    loss += learn(m, text, text[C]) / B;
  }
  return loss;
}

/* -- the optimizer that onebit replaces ----------------------------------------------------------
 */

static void adamw(model* m, float* mean, float* square, int step, float lr, float weight_decay) {
  const float beta1 = 0.9F, beta2 = 0.999F, eps = 1e-8F;
  const float c1 = 1 - powf(beta1, (float)(step + 1)), c2 = 1 - powf(beta2, (float)(step + 1));
  for (int i = 0; i < n_params; ++i) {
    const float g = m->grads[i];
    mean[i] = beta1 * mean[i] + (1 - beta1) * g;
    square[i] = beta2 * square[i] + (1 - beta2) * g * g;
    m->params[i] -=
        lr * (mean[i] / c1 / (sqrtf(square[i] / c2) + eps) + weight_decay * m->params[i]);
  }
}

/* -- training ------------------------------------------------------------------------------------
 */

static void check(onebit_status status) {
  if (status == ONEBIT_OK) return;
  fprintf(stderr, "%s\n", onebit_last_error());
  ranks_abort();
}

/* The mean of all ranks' values, in place. */
static void average(ranks* all, float* values, size_t n) {
  float* gathered = malloc((size_t)all->size * n * sizeof(float));
  if (gathered == NULL || ranks_all_gather(all, values, gathered, n * sizeof(float)) != 0) {
    fprintf(stderr, "the ranks are gone\n");
    ranks_abort();
  }
  for (size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (int r = 0; r < all->size; ++r) sum += gathered[(size_t)r * n + i];
    values[i] = sum / (float)all->size;
  }
  free(gathered);
}

/* Trains with `algorithm`, or with adamw() for NULL; the losses of all steps. */
static void train(ranks* all, const char* algorithm, int steps, float* losses) {
  static model m;
  static float mean[n_params], square[n_params];
  const float lr = 0.01F;
  unsigned long long bytes = 0;
  memset(mean, 0, sizeof mean);
  memset(square, 0, sizeof square);
  start(&m);
  onebit_optimizer* optimizer = NULL;
  if (algorithm != NULL) {
    const char* warm_up = strcmp(algorithm, "zero_one_adam") == 0 ? "warmup_steps" : "freeze_step";
    const onebit_option options[] = {{"weight_decay", "0.01"}, {warm_up, "60"}};
    onebit_tensor tensors[n_tensors];
    for (size_t t = 0, at = 0; t < n_tensors; at += sizes[t++]) {
      tensors[t] = (onebit_tensor){m.params + at, m.grads + at, sizes[t], 0};
    }
    onebit_comm* comm = ranks_comm(all);
    check(onebit_create(algorithm, options, strcmp(algorithm, "adam") == 0 ? 1 : 2, tensors,
                        n_tensors, NULL, 0, comm, &optimizer));
    onebit_comm_destroy(comm);
  }
  for (int step = 0; step < steps; ++step) {
    losses[step] = loss_and_gradient(&m, step, all->rank);
    if (algorithm == NULL) {
      average(all, m.grads, n_params);
      adamw(&m, mean, square, step, lr, 0.01F);
    } else {
      onebit_report report;
      check(onebit_step(optimizer, lr, 1, &report));
      bytes += report.bytes_sent;
      if (all->rank == 0 && (step + 1) % (steps / 4) == 0) {
        char line[512];
        (void)onebit_report_text(&report, line, sizeof line);
        printf("  %s\n", line);
      }
    }
  }
  onebit_destroy(optimizer);
  average(all, losses, (size_t)steps);
  if (all->rank == 0) {
    printf("%-14s loss %.6f, %.6f, %.6f; rank 0 sent %.1f kB\n",
           algorithm == NULL ? "adamw()" : algorithm, (double)losses[0], (double)losses[steps / 2],
           (double)losses[steps - 1], 1e-3 * (double)bytes);
    fflush(stdout);
  }
}

static int train_all(ranks* all, const char* algorithm, int steps) {
  float* losses = malloc(3 * (size_t)steps * sizeof(float));
  if (losses == NULL) return 1;
  train(all, NULL, steps, losses);
  train(all, "adam", steps, losses + steps);
  train(all, algorithm, steps, losses + 2 * steps);
  float farthest = 0, last = 0;
  for (int s = 0; s < steps; ++s) farthest = fmaxf(farthest, fabsf(losses[s] - losses[steps + s]));
  for (int s = steps - 20; s < steps; ++s) last += losses[2 * steps + s] / 20;
  const float first = losses[2 * steps];
  free(losses);
  if (all->rank == 0) printf("adam and adamw() differ by at most %.1e\n", (double)farthest);
  return farthest < 1e-4F && last < 0.6F * first ? 0 : 1;
}

int main(int argc, char** argv) {
  const char* algorithm = argc > 1 ? argv[1] : "one_bit_adam";
  const int n_ranks = argc > 2 ? atoi(argv[2]) : 2, steps = argc > 3 ? atoi(argv[3]) : 400;
  if (n_ranks < 1 || n_ranks > max_ranks || steps < 80) {
    fprintf(stderr, "usage: c_trainer [algorithm] [1 to %d ranks] [80 or more steps]\n", max_ranks);
    return 2;
  }
  ranks all;
  if (ranks_begin(&all, n_ranks) != 0) return 1;
  const int failed = train_all(&all, algorithm, steps);
  return ranks_end(&all, failed);
}
