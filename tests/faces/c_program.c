/* SPDX-FileCopyrightText: 2026 The onebit authors
 * SPDX-License-Identifier: Apache-2.0 */

#define _POSIX_C_SOURCE 200809L /* symlink */

#include "c_program.h"

#include <math.h>
#include <onebit/c/onebit.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(what) \
  if (!(what)) return __LINE__
#define FAILS(call, status, text) \
  EXPECT((call) == (status) && strstr(onebit_last_error(), (text)) != NULL)

enum { n = 300 };

typedef struct {
  float x[n], g[n];
} model;

static void start(model* m) {
  for (int i = 0; i < n; ++i) m->x[i] = 1;
}
/* Of step s on a rank. */
static void differentiate(model* m, int step, int rank) {
  for (int i = 0; i < n; ++i) {
    m->g[i] = m->x[i] + 0.01F * (float)((i * 7 + step * 13 + rank * 5) % 23 - 11);
  }
}
/* Two tensors, the second of which comes first in the order of the groups. */
static void describe(model* m, onebit_tensor t[2]) {
  t[0].params = m->x;
  t[0].grads = m->g;
  t[0].size = 100;
  t[0].group = 1;
  t[1].params = m->x + 100;
  t[1].grads = m->g + 100;
  t[1].size = n - 100;
  t[1].group = 0;
}
static const onebit_group two_groups[2] = {{1, 0.1F}, {0.5F, 0}};

/* -- one rank ---------------------------------------------------------------------------------- */

static int larger(void* limit, float norm) { return norm > *(float*)limit; }

static int alone(void) {
  model m;
  onebit_tensor t[2];
  onebit_comm* comm = NULL;
  onebit_optimizer* o = NULL;
  onebit_report r;
  char line[512];
  const onebit_option options[] = {{"lr", "0.25"}, {"betas", "[0.8, 0.9]"}};
  const onebit_option twice[] = {{"lr", "0.25"}, {"lr", "0.5"}};
  onebit_group still[1] = {{0, 0}};

  start(&m);
  describe(&m, t);
  EXPECT(onebit_comm_self(&comm) == ONEBIT_OK);
  EXPECT(onebit_comm_rank(comm) == 0 && onebit_comm_size(comm) == 1);
  EXPECT(onebit_comm_rank(NULL) == -1 && onebit_comm_size(NULL) == -1);

  FAILS(onebit_create("adam", NULL, 0, t, 2, NULL, 0, comm, &o), ONEBIT_INVALID_INPUT,
        "tensor 0 is of group 1, but there are 1");
  EXPECT(o == NULL);
  FAILS(onebit_create("Adm", NULL, 0, t, 2, two_groups, 2, comm, &o), ONEBIT_INVALID_INPUT,
        "no algorithm 'Adm'");
  FAILS(onebit_create(NULL, NULL, 0, t, 2, two_groups, 2, comm, &o), ONEBIT_INVALID_INPUT,
        "name is NULL");
  FAILS(onebit_create("adam", NULL, 1, t, 2, two_groups, 2, comm, &o), ONEBIT_INVALID_INPUT,
        "options is NULL");
  FAILS(onebit_create("adam", twice, 2, t, 2, two_groups, 2, comm, &o), ONEBIT_INVALID_INPUT,
        "option lr is given twice");
  FAILS(onebit_create("adam", NULL, 0, NULL, 2, two_groups, 2, comm, &o), ONEBIT_INVALID_INPUT,
        "tensors is NULL");
  FAILS(onebit_create("adam", NULL, 0, t, 2, NULL, 2, comm, &o), ONEBIT_INVALID_INPUT,
        "groups is NULL");
  FAILS(onebit_create("adam", NULL, 0, t, 2, still, 1, comm, &o), ONEBIT_INVALID_INPUT,
        "lr_factor 0");
  FAILS(onebit_create("adam", NULL, 0, t, 2, two_groups, 2, NULL, &o), ONEBIT_INVALID_INPUT,
        "comm is NULL");
  FAILS(onebit_create("adam", NULL, 0, t, 2, two_groups, 2, comm, NULL), ONEBIT_INVALID_INPUT,
        "optimizer is NULL");
  t[1].grads = NULL;
  FAILS(onebit_create("adam", NULL, 0, t, 2, two_groups, 2, comm, &o), ONEBIT_INVALID_INPUT,
        "null");
  describe(&m, t);

  EXPECT(onebit_create("adam", options, 2, t, 2, two_groups, 2, comm, &o) == ONEBIT_OK);
  onebit_comm_destroy(comm);
  EXPECT(onebit_lr(o) == 0.25F && onebit_steps(o) == 0 && onebit_state_bytes(o) >= 8 * n);
  EXPECT(strstr(onebit_description(o), "adam, beta1 0.8") == onebit_description(o));
  differentiate(&m, 0, 0);
  EXPECT(onebit_begin(o, 0.1F, 1) == ONEBIT_OK);
  FAILS(onebit_begin(o, 0.1F, 1), ONEBIT_INVALID_INPUT, "begin() twice");
  EXPECT(onebit_ready(o, 1) == ONEBIT_OK && onebit_ready(o, 0) == ONEBIT_OK);
  FAILS(onebit_ready(o, 2), ONEBIT_INVALID_INPUT, "ready(2) of 2");
  EXPECT(onebit_step(o, 0.1F, 1, &r) == ONEBIT_OK);
  EXPECT(r.step == 0 && r.phase == ONEBIT_DENSE && r.skipped == 0 && r.bytes_sent == 0);
  EXPECT(fabsf(m.x[0] - 0.95F) < 1e-5F); /* half of the rate, no decay */
  EXPECT(fabsf(m.x[200] - 0.89F) < 1e-5F);
  EXPECT(onebit_report_text(&r, line, sizeof line) == strlen(line));
  EXPECT(strncmp(line, "step 0 dense: ", 14) == 0);
  EXPECT(onebit_report_json(&r, line, sizeof line) == strlen(line));
  EXPECT(strncmp(line, "{\"step\":0,\"phase\":\"dense\",\"refreshed\":false,", 44) == 0);
  EXPECT(onebit_report_json(&r, line, 8) > 100 && strcmp(line, "{\"step\"") == 0);
  EXPECT(onebit_report_text(&r, NULL, 0) > 20 && onebit_report_text(NULL, line, 8) == 0);
  {
    onebit_report odd = r;
    odd.phase = (onebit_phase)3;
    EXPECT(onebit_report_text(&odd, line, sizeof line) == 0 && line[0] == 0);
    EXPECT(strstr(onebit_last_error(), "phase is 3, must be 0 to 2") != NULL);
    EXPECT(onebit_report_json(&odd, NULL, 0) == 0);
  }

  differentiate(&m, 1, 0);
  m.g[7] = NAN;
  EXPECT(onebit_step(o, 0.1F, 1, &r) == ONEBIT_OK && r.skipped == 1);
  EXPECT(onebit_n_skipped(o) == 1 && onebit_steps(o) == 1);
  FAILS(onebit_step(o, -1, 1, NULL), ONEBIT_INVALID_INPUT, "lr");
  FAILS(onebit_step(NULL, 1, 1, NULL), ONEBIT_INVALID_INPUT, "onebit_step: optimizer is NULL");
  EXPECT(onebit_set_group(o, 1, 0, 0) == ONEBIT_OK);
  FAILS(onebit_set_group(o, 2, 1, 0), ONEBIT_INVALID_INPUT, "group 2 of 2");
  EXPECT(onebit_verify(o) == ONEBIT_OK);
  EXPECT(onebit_warn(o, 0) == ONEBIT_OK && onebit_warn(o, 1) == ONEBIT_OK);
  {
    const float before = m.x[0];
    differentiate(&m, 2, 0);
    EXPECT(onebit_step(o, 0.1F, 1, NULL) == ONEBIT_OK && m.x[0] == before);
  }
  {
    const float before = m.x[200];
    float limit = 0;
    EXPECT(onebit_veto(o, larger, &limit) == ONEBIT_OK);
    differentiate(&m, 2, 0);
    EXPECT(onebit_step(o, 0.1F, 1, &r) == ONEBIT_OK && r.skipped == 1 && m.x[200] == before);
    EXPECT(r.skipped_share > 0 && isnan(r.sent_of_dense)); /* one rank sends nothing */
    limit = 1e30F;
    differentiate(&m, 2, 0);
    EXPECT(onebit_step(o, 0, 1, &r) == ONEBIT_OK && r.skipped == 0);
    EXPECT(onebit_veto(o, NULL, NULL) == ONEBIT_OK);
    FAILS(onebit_veto(NULL, larger, &limit), ONEBIT_INVALID_INPUT, "optimizer is NULL");
  }
  {
    float x0[100], g0[100], x1[n - 100], g1[n - 100];
    float* xs[2];
    float* gs[2];
    xs[0] = x0, xs[1] = x1, gs[0] = g0, gs[1] = g1;
    for (int i = 0; i < n; ++i) *(i < 100 ? x0 + i : x1 + (i - 100)) = m.x[i];
    for (int i = 0; i < n; ++i) *(i < 100 ? g0 + i : g1 + (i - 100)) = NAN;
    FAILS(onebit_rebind(o, xs, gs, 1), ONEBIT_INVALID_INPUT, "1 tensors, but the optimizer has 2");
    FAILS(onebit_rebind(o, NULL, gs, 2), ONEBIT_INVALID_INPUT, "params is NULL");
    xs[1] = NULL;
    FAILS(onebit_rebind(o, xs, gs, 2), ONEBIT_INVALID_INPUT, "null");
    xs[1] = x1;
    EXPECT(onebit_rebind(o, xs, gs, 2) == ONEBIT_OK && onebit_rebind(o, xs, gs, 2) == ONEBIT_OK);
    for (int i = 0; i < n - 100; ++i) g1[i] = 1;
    FAILS(onebit_rest(o, 2), ONEBIT_INVALID_INPUT, "rest(2) of 2");
    EXPECT(onebit_rest(o, 0) == ONEBIT_OK);
    {
      const float before = x0[0], before1 = x1[0];
      EXPECT(onebit_step(o, 0.1F, 1, &r) == ONEBIT_OK && r.skipped == 0);
      EXPECT(x0[0] == before && x1[0] < before1 && m.x[100] == before1);
    }
  }
  onebit_destroy(o);
  onebit_destroy(NULL);
  onebit_comm_destroy(NULL);
  EXPECT(onebit_lr(NULL) == 0 && onebit_steps(NULL) == 0 && onebit_n_skipped(NULL) == 0);
  EXPECT(onebit_state_bytes(NULL) == 0 && onebit_description(NULL) == NULL);
  FAILS(onebit_comm_self(NULL), ONEBIT_INVALID_INPUT, "comm is NULL");
  FAILS(onebit_run_threads(2, NULL, NULL), ONEBIT_INVALID_INPUT, "f is NULL");
  return 0;
}

static int moments(void) {
  model m;
  onebit_tensor t[2];
  onebit_comm* comm = NULL;
  onebit_optimizer* o = NULL;
  float first[n], second[n];
  const float* m_of[2];
  const float* v_of[2];
  const onebit_option plain[] = {{"bias_correction", "false"}, {"eps", "1e-30"}};

  start(&m);
  describe(&m, t);
  for (int i = 0; i < n; ++i) {
    m.g[i] = 0;
    first[i] = i < 100 ? 1.0F : 3.0F;
    second[i] = 1;
  }
  m_of[0] = first, m_of[1] = first + 100;
  v_of[0] = second, v_of[1] = second + 100;
  EXPECT(onebit_comm_self(&comm) == ONEBIT_OK);
  EXPECT(onebit_create("adam", plain, 2, t, 2, two_groups, 2, comm, &o) == ONEBIT_OK);
  FAILS(onebit_start_from(o, NULL, v_of, 5), ONEBIT_INVALID_INPUT, "m is NULL");
  EXPECT(onebit_start_from(o, m_of, v_of, 5) == ONEBIT_OK);
  EXPECT(onebit_step(o, 0.1F, 1, NULL) == ONEBIT_OK);
  /* x - lr (0.9 m / sqrt(0.999) + decay x) */
  EXPECT(fabsf(m.x[0] - (1 - 0.05F * 0.9F / sqrtf(0.999F))) < 1e-6F);
  EXPECT(fabsf(m.x[100] - (1 - 0.1F * (2.7F / sqrtf(0.999F) + 0.1F))) < 1e-6F);
  FAILS(onebit_start_from(o, m_of, v_of, 5), ONEBIT_INVALID_INPUT, "start_from");
  onebit_destroy(o);
  onebit_comm_destroy(comm);
  return 0;
}

/* -- several ----------------------------------------------------------------------------------- */

typedef struct {
  const char* algorithm;
  int steps;
  float* x_of_rank_0;
} job;

static int train(onebit_comm* comm, void* context) {
  const job* j = (const job*)context;
  const int is_zero_one = strncmp(j->algorithm, "zero_one", 8) == 0;
  const onebit_option options[] = {{"beta2", "0.99"},
                                   {is_zero_one ? "warmup_steps" : "after", "4"}};
  model m;
  onebit_tensor t[2];
  onebit_optimizer* o = NULL;

  start(&m);
  describe(&m, t);
  EXPECT(onebit_create(j->algorithm, options, 2, t, 2, two_groups, 2, comm, &o) == ONEBIT_OK);
  EXPECT(onebit_warn(o, 0) == ONEBIT_OK);
  for (int step = 0; step < j->steps; ++step) {
    differentiate(&m, step, onebit_comm_rank(comm));
    EXPECT(onebit_step(o, 0.01F, 1, NULL) == ONEBIT_OK);
  }
  if (onebit_comm_rank(comm) == 0) memcpy(j->x_of_rank_0, m.x, sizeof m.x);
  onebit_destroy(o);
  return 0;
}

int c_training(const char* algorithm, int n_ranks, int steps, float* x_of_rank_0) {
  job j = {algorithm, steps, x_of_rank_0};
  return (int)onebit_run_threads(n_ranks, train, &j);
}

/* A job of four steps goes on from a checkpoint of its second. */
static int save_and_go_on(onebit_comm* comm, void* context) {
  const char* directory = (const char*)context;
  const onebit_option options[] = {{"after", "1"}, {"beta2", "0.99"}};
  const int rank = onebit_comm_rank(comm);
  model m, then;
  onebit_tensor t[2];
  onebit_optimizer* o = NULL;
  char path[4096], root[4096];
  int64_t step = 7;

  (void)snprintf(path, sizeof path, "%s/rank-%d", directory, rank);
  (void)snprintf(root, sizeof root, "%s/all", directory);
  start(&m);
  describe(&m, t);
  EXPECT(onebit_create("one_bit_adam", options, 2, t, 2, two_groups, 2, comm, &o) == ONEBIT_OK);
  EXPECT(onebit_warn(o, 0) == ONEBIT_OK);
  EXPECT(onebit_load_latest(o, root, &step) == ONEBIT_OK && step == -1);
  for (int s = 0; s < 4; ++s) {
    if (s == 2) {
      EXPECT(onebit_save(o, path) == ONEBIT_OK);
      EXPECT(onebit_save_all(o, root, 2) == ONEBIT_OK);
      memcpy(then.x, m.x, sizeof m.x);
    }
    differentiate(&m, s, rank);
    EXPECT(onebit_step(o, 0.01F, 1, NULL) == ONEBIT_OK);
  }
  onebit_destroy(o);
  for (int from_all = 0; from_all < 2; ++from_all) {
    model again;
    start(&again);
    describe(&again, t);
    EXPECT(onebit_create("one_bit_adam", options, 2, t, 2, two_groups, 2, comm, &o) == ONEBIT_OK);
    if (from_all) {
      EXPECT(onebit_load_latest(o, root, &step) == ONEBIT_OK && step == 2);
      EXPECT(memcmp(again.x, then.x, sizeof then.x) == 0);
    } else {
      FAILS(onebit_load(o, "/no/such/file"), ONEBIT_CHECKPOINT_ERROR,
            "/no/such/file cannot be opened");
      memcpy(again.x, then.x, sizeof then.x);
      EXPECT(onebit_load(o, path) == ONEBIT_OK);
    }
    EXPECT(onebit_steps(o) == 2);
    for (int s = 2; s < 4; ++s) {
      differentiate(&again, s, rank);
      EXPECT(onebit_step(o, 0.01F, 1, NULL) == ONEBIT_OK);
    }
    EXPECT(memcmp(again.x, m.x, sizeof m.x) == 0);
    if (!from_all)
      FAILS(onebit_save(o, "/no/such/directory/file"), ONEBIT_CHECKPOINT_ERROR,
            "/no/such/directory/file.partial failed: No such file or directory");
    if (!from_all && rank == 0) { /* not through a link */
      char link[4200], target[4200], at[4200];
      FILE* file;
      (void)snprintf(at, sizeof at, "%s/linked", directory);
      (void)snprintf(link, sizeof link, "%s/linked.partial", directory);
      (void)snprintf(target, sizeof target, "%s/target", directory);
      file = fopen(target, "w");
      EXPECT(file != NULL && fclose(file) == 0 && symlink(target, link) == 0);
      EXPECT(onebit_save(o, at) == ONEBIT_OK);
      file = fopen(target, "r");
      EXPECT(file != NULL && fgetc(file) == EOF && fclose(file) == 0);
    }
    if (!from_all && rank == 0) {
      char left[4200];
      (void)snprintf(left, sizeof left, "%s.partial", root);
      FAILS(onebit_save(o, root), ONEBIT_CHECKPOINT_ERROR, "/all failed: Is a directory");
      EXPECT(fopen(left, "r") == NULL);
    }
    if (from_all) { /* a root that is a file */
      (void)snprintf(path, sizeof path, "%s/rank-0", directory);
      EXPECT(onebit_load_latest(o, path, &step) == ONEBIT_CHECKPOINT_ERROR && step == -1);
    }
    onebit_destroy(o);
  }
  return 0;
}

static int fails_on_one(onebit_comm* comm, void* context) {
  float x[1] = {0};
  (void)context;
  if (onebit_comm_rank(comm) == 1) return 42;
  {
    onebit_tensor t = {x, x + 0, 0, 0};
    onebit_optimizer* o = NULL; /* waits for rank 1, which is gone */
    EXPECT(onebit_create("adam", NULL, 0, &t, 1, NULL, 0, comm, &o) == ONEBIT_TRANSPORT_ERROR);
    EXPECT(o == NULL);
  }
  return 0;
}

/* A rank that is given a NULL tells the others. */
static int null_on_one(onebit_comm* comm, void* context) {
  float x[2] = {0, 0};
  onebit_tensor t = {x, x + 1, 1, 0};
  onebit_optimizer* o = NULL;
  const int is_odd = onebit_comm_rank(comm) == 1;
  onebit_status s = onebit_create("adam", NULL, 0, is_odd ? NULL : &t, 1, NULL, 0, comm, &o);
  (void)context;
  EXPECT(s == (is_odd ? ONEBIT_INVALID_INPUT : ONEBIT_RANK_MISMATCH));
  EXPECT(is_odd || strstr(onebit_last_error(), "rank 1") != NULL);
  return 0;
}

/* So does one that is given a bad root or count: no rank waits for its deadline. */
static int bad_root_on_one(onebit_comm* comm, void* context) {
  const char* const root = (const char*)context;
  const int is_odd = onebit_comm_rank(comm) == 1;
  float x[2] = {0, 0};
  onebit_tensor t = {x, x + 1, 1, 0};
  onebit_optimizer* o = NULL;
  int64_t step = 5;
  onebit_status s;

  EXPECT(onebit_create("adam", NULL, 0, &t, 1, NULL, 0, comm, &o) == ONEBIT_OK);
  for (int i = 0; i < 3; ++i) {
    const char* const why = i == 0   ? "onebit_save_all: root is NULL"
                            : i == 1 ? "keep is 0"
                                     : "onebit_load_latest: root is NULL";
    if (i < 2)
      s = onebit_save_all(o, i == 0 && is_odd ? NULL : root, i == 1 && is_odd ? 0 : 2);
    else
      s = onebit_load_latest(o, is_odd ? NULL : root, &step);
    EXPECT(s == (is_odd ? ONEBIT_INVALID_INPUT : ONEBIT_CHECKPOINT_ERROR));
    EXPECT(strstr(onebit_last_error(), is_odd ? why : "failed on rank 1, which says why") != NULL);
  }
  EXPECT(step == -1);
  EXPECT(onebit_step(o, 0.1F, 1, NULL) == ONEBIT_OK); /* and all go on */
  onebit_destroy(o);
  return 0;
}

/* -- a transport of one's own ------------------------------------------------------------------ */

static int calls = 0;

static int copy_bytes(void* context, const void* send, void* receive, size_t bytes) {
  ++calls;
  memcpy(receive, send, bytes);
  return *(int*)context;
}

static int own_transport(void) {
  float x[40], g[40];
  int status = 0;
  onebit_transport mine = {0, 1, NULL, copy_bytes, copy_bytes, NULL};
  onebit_tensor t = {x, g, 40, 0};
  onebit_comm* comm = NULL;
  onebit_optimizer* o = NULL;
  const onebit_option by_transport[] = {{"sum", "transport"}};

  mine.context = &status;
  for (int i = 0; i < 40; ++i) x[i] = g[i] = 1;
  EXPECT(onebit_comm_callbacks(&mine, &comm) == ONEBIT_OK);
  EXPECT(onebit_create("adam", NULL, 0, &t, 1, NULL, 0, comm, &o) == ONEBIT_OK && calls > 0);
  EXPECT(onebit_step(o, 0.1F, 1, NULL) == ONEBIT_OK && fabsf(x[0] - 0.9F) < 1e-6F);
  onebit_destroy(o);
  status = 5;
  FAILS(onebit_create("adam", NULL, 0, &t, 1, NULL, 0, comm, &o), ONEBIT_TRANSPORT_ERROR,
        "returned 5 [rank 0/1]");
  status = 0;
  EXPECT(onebit_create("adam", by_transport, 1, &t, 1, NULL, 0, comm, &o) == ONEBIT_OK);
  onebit_destroy(o);
  onebit_comm_destroy(comm);
  mine.rank = 1;
  FAILS(onebit_comm_callbacks(&mine, &comm), ONEBIT_INVALID_INPUT, "rank 1 of 1 ranks");
  EXPECT(comm == NULL);
  mine.rank = 0;
  mine.all_gather = NULL;
  FAILS(onebit_comm_callbacks(&mine, &comm), ONEBIT_INVALID_INPUT, "all_gather is NULL");
  FAILS(onebit_comm_callbacks(NULL, &comm), ONEBIT_INVALID_INPUT, "transport is NULL");
  return 0;
}

int c_program(const char* directory) {
  int line;
  onebit_comm* comm = NULL;
  EXPECT(onebit_last_error() != NULL);
  if ((line = alone()) != 0) return line;
  if ((line = moments()) != 0) return line;
  if ((line = own_transport()) != 0) return line;
  if (onebit_run_threads(2, save_and_go_on, (void*)directory) != ONEBIT_OK) {
    (void)fprintf(stderr, "%s\n", onebit_last_error());
    return __LINE__;
  }
  FAILS(onebit_run_threads(2, fails_on_one, NULL), ONEBIT_ERROR, "f returned 42 [rank 1/2]");
  EXPECT(onebit_run_threads(2, null_on_one, NULL) == ONEBIT_OK);
  EXPECT(onebit_run_threads(0, null_on_one, NULL) == ONEBIT_INVALID_INPUT);
  {
    char root[4096];
    (void)snprintf(root, sizeof root, "%s/bad", directory);
    if (onebit_run_threads(2, bad_root_on_one, root) != ONEBIT_OK) {
      (void)fprintf(stderr, "%s\n", onebit_last_error());
      return __LINE__;
    }
  }
  FAILS(onebit_comm_mpi_world(1, &comm), ONEBIT_UNSUPPORTED, "built without MPI");
  FAILS(onebit_comm_mpi(0, 1, &comm), ONEBIT_UNSUPPORTED, "ONEBIT_C_WITH_MPI");
  return 0;
}
