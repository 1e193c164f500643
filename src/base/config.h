/* config - every setting of a rank: one table gives parsing, defaults, help and dump.
 *
 * Order: config_init, then files and assignments in the order of the command line (the last one
 * wins), then config_check once. A file holds `key = value` lines; `#` at the start of a line or
 * behind a blank begins a comment. No environment variable is read.
 */
#ifndef TANDEM_BASE_CONFIG_H
#define TANDEM_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "src/base/limits.h"

#define GRAPH_PIECES_MAX 8
#define CONFIG_AUTO (-1) /* value of an int setting that says "auto" */

enum numerics { NUMERICS_FP32, NUMERICS_BF16, NUMERICS_RELEASED };
enum partials { PARTIALS_AUTO, PARTIALS_BF16, PARTIALS_FP32 };
enum experts { EXPERTS_WIDTH, EXPERTS_WHOLE };
enum graphs { GRAPHS_AUTO, GRAPHS_ON, GRAPHS_OFF };
enum plan_form { PLAN_FORM_FLAG, PLAN_FORM_IMM, PLAN_FORM_TCP };

/* Names that choose an implementer of a table stay names; they are one of the allowed ones and live
 * for ever. Other strings belong to the config. Never NULL: empty means not given.
 */
struct config {
    char *model, *cache;
    int ranks, rank;
    const char *link; /* loop, tcp, shm, rdma */
    const char *comm; /* auto, link, nccl, peer */
    char *hosts;
    int port;
    char *secret;
    const char *backend; /* auto, ref, cpu, cuda */
    int device;          /* or CONFIG_AUTO */
    int numerics;        /* enum numerics */
    bool cache_quant;
    int partials;      /* enum partials */
    int experts;       /* enum experts */
    const char *draft; /* auto, none, ngram, dspark, mtp, oracle, random */
    int depth;         /* or CONFIG_AUTO */
    bool spec_draft;
    char *costs; /* "auto" or a file */
    int slots, context;
    int window_max, prefill_chunk;
    bool ignore_eos;
    int threads; /* 0: see config_threads */
    char *pin;   /* "auto", "off" or "round,proxy" cores */
    int graphs;  /* enum graphs */
    bool overlap, side, early_ingest;
    size_t prefetch;
    int prefetch_rate; /* GB/s */
    int expert_top_p;  /* percent */
    int graph_max, graph_pieces;
    size_t engram_cache;
    const char *engram_io; /* auto, uring, pread */
    char *log;
    int log_level; /* enum log_level */
    bool trace_numerics;
    int heartbeat_ms, peer_timeout_ms, stall_ms, wait_limit_ms, round_limit_ms;
    int connect_timeout_ms, grace_ms;
    int rails; /* or CONFIG_AUTO */
    size_t stripe_min;
    int spin_us;
    int plan_form; /* enum plan_form */
};

/* config_init - every default.
 * errors   -ENOMEM; then nothing is owned
 * owns     the strings; config_free gives them back and may be called twice
 */
int config_init(struct config *c);
void config_free(struct config *c);

/* config_read - apply a file.
 * errors   those of file_read (64 KiB at most); -EINVAL naming file, line and key. Lines before the
 *          wrong one have been applied
 */
int config_read(struct config *c, const char *path);

/* config_set - apply one "key=value"; blanks around both are dropped.
 * errors   -EINVAL naming the key: unknown (with the nearest known one), no value, not of the key's
 *          type, out of its range; the setting keeps its value. -ENOMEM
 */
int config_set(struct config *c, const char *assignment);

/* config_check - the relations between keys, after the last config_set.
 * errors   -EINVAL naming the keys
 */
int config_check(const struct config *c);

/* config_check_paths - the part of it that matters without a group: names of files and folders. */
int config_check_paths(const struct config *c);

/* config_get - the value in force of a key, as config_set would take it, into buf, cut to cap.
 * errors   -EINVAL for an unknown key, unlogged
 */
int config_get(const struct config *c, const char *key, char *buf, size_t cap);

/* config_dump - every key, its meaning, default, limits and value in force, as a file for
 * config_read.
 * errors   the errno of the write
 */
int config_dump(const struct config *c, FILE *f);

/* config_agree_text - the settings that ranks must share, `key = value` a line, sorted by key.
 *
 * Left out: what names a rank, a machine or a path, and what changes neither a byte on the wire nor
 * a token (threads, pinning, caches, logs, timeouts, poll counts).
 *
 * errors   -ENOMEM
 * owns     the caller frees *out
 */
int config_agree_text(const struct config *c, char **out);

/* config_host - the host of a rank, "127.0.0.1" if `hosts` is empty.
 * errors   -EINVAL if `hosts` has no such entry, -ENAMETOOLONG; logged
 */
int config_host(const struct config *c, int rank, char *buf, size_t cap);

/* config_neighbours - how many ranks run on this rank's host. */
int config_neighbours(const struct config *c);

/* config_device - the number of this rank's device: as set, or its place among the ranks of its
 * host */
int config_device(const struct config *c);

/* config_threads - CPU threads of this rank: `threads`, or its share of the allowed cores. */
int config_threads(const struct config *c);

#endif
